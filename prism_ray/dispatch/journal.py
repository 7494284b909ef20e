"""The last decisions with what their placement compared, for whoever asks why. Decides nothing."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Any

from prism_ray.model import Decision
from prism_ray.placement import Choice

DECISIONS_MAX = 4096


class Journal:
    """Decisions by request id: the newest attempt of each of the last ``limit`` requests."""

    def __init__(self, limit: int = DECISIONS_MAX) -> None:
        self._limit = limit
        self._entries: OrderedDict[str, tuple[Decision, Choice, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def write(self, decision: Decision, choice: Choice, now_s: float) -> None:
        """``choice`` is the placement's."""
        entries = self._entries
        entries[decision.request_id] = decision, choice, now_s
        entries.move_to_end(decision.request_id)
        if len(entries) > self._limit:
            entries.popitem(last=False)

    def last(self, count: int, now_s: float) -> list[dict[str, Any]]:
        """The newest ``count`` decisions as ``explain`` tells them, newest first."""
        newest = list(islice(reversed(self._entries), count))
        return [told for name in newest if (told := self.explain(name, now_s)) is not None]

    def explain(self, request_id: str, now_s: float) -> dict[str, Any] | None:
        """Why a request went where it went, JSON-ready; None if that is not known any more.

        Keys: request_id, attempt, replica, plan_version, position, lane, score, policy_reason, order,
        queue_s, predicted_cached_tokens, age_s, and placement (kind, numbers).
        """
        found = self._entries.get(request_id)
        if found is None:
            return None
        decision, choice, decided_s = found
        return {
            "request_id": decision.request_id,
            "attempt": decision.attempt,
            "replica": decision.replica,
            "plan_version": decision.plan_version,
            "position": decision.position,
            "lane": str(decision.lane),
            "score": decision.score,
            "reason": decision.reason,
            "order": list(decision.order),
            "queue_s": decision.queue_s,
            "predicted_cached_tokens": decision.predicted_cached_tokens,
            "age_s": now_s - decided_s,
            "placement": {"kind": choice.kind, "numbers": dict(choice.numbers)},
        }
