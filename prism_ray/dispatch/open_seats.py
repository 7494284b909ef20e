"""Which replicas can be given something now, known without asking every seat. Changes no seat."""

from __future__ import annotations

from collections.abc import Iterable

from prism_ray.dispatch.seat import Seat


class OpenSeats:
    """Told of every change of a seat (``Seat``'s ``changed``).

    With hundreds of replicas nearly every event concerns one of them: what the others could take did
    not change, and asking them all again is what a round would spend its time on.
    """

    def __init__(self) -> None:
        self._idle: dict[str, bool] = {}
        self._idle_count = 0
        self.draining: set[str] = set()

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, replica: object) -> bool:
        return replica in self._idle

    @property
    def any_idle(self) -> bool:
        """Whether an open replica has no prefill left to do."""
        return self._idle_count > 0

    def names(self) -> list[str]:
        """The open replicas, by name."""
        return sorted(self._idle)

    def note(self, seat: Seat) -> None:
        """A seat joined or changed."""
        name = seat.replica
        if seat.draining:
            self.draining.add(name)
        else:
            self.draining.discard(name)
        if not seat.open:
            self._shut(name)
            return
        idle = seat.idle_prefill
        self._idle_count += idle - self._idle.get(name, False)
        self._idle[name] = idle

    def forget(self, replica: str) -> None:
        self._shut(replica)
        self.draining.discard(replica)

    def _shut(self, replica: str) -> None:
        self._idle_count -= self._idle.pop(replica, False)

    def check_integrity(self, seats: Iterable[Seat]) -> None:
        """AssertionError unless it is what asking every seat would say."""
        everyone = list(seats)
        assert self._idle == {s.replica: s.idle_prefill for s in everyone if s.open}
        assert self._idle_count == sum(self._idle.values())
        assert self.draining == {s.replica for s in everyone if s.draining}
