"""Who was heard of lately: ingresses by their incarnation, and which replicas Serve told them of.

Pure: time comes in as an argument. What follows from a silence is the QAS actor's business.
"""

from __future__ import annotations

INGRESS_SILENT_S = 5.0
"""An ingress that sent nothing for this long is gone (it sends a heartbeat four times a second)."""


class Attendance:
    """The ingresses of one QAS. An unnamed ingress ("") is not kept track of."""

    def __init__(self, silent_s: float = INGRESS_SILENT_S) -> None:
        self._silent_s = silent_s
        self._heard_s: dict[str, float] = {}
        self._members: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._heard_s)

    def heard(self, ingress: str, now_s: float, members: frozenset[str] | None = None) -> None:
        """A sign of life; ``members``: the replicas that Serve says are running."""
        if not ingress:
            return
        self._heard_s[ingress] = now_s
        if members is not None:
            self._members[ingress] = members

    def leave_silent(self, now_s: float) -> list[str]:
        """Strike off the ingresses that were silent for too long; their names."""
        gone = [name for name, at_s in self._heard_s.items() if now_s - at_s >= self._silent_s]
        for name in gone:
            del self._heard_s[name]
            self._members.pop(name, None)
        return gone

    def runs(self, replica: str) -> bool:
        """Whether some ingress was told that Serve runs the replica; True while none was told of any.

        An ingress whose router has not learned of any replica yet (an empty list) has no say.
        """
        told = [members for members in self._members.values() if members]
        return not told or any(replica in members for members in told)

    def excuse(self, pause_s: float) -> None:
        """Nobody could be heard for this long: the listener itself was paused."""
        for name in self._heard_s:
            self._heard_s[name] += pause_s
