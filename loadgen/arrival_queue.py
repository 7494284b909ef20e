"""Arrivals for a tool that thinks in users: who sends what when, and how many users that takes.

An open loop out of users: each takes the next request, waits until it is due, sends it, and takes
another when it is answered. It stays open for as long as some user is free. No clock, no Locust.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from loadgen.rows import PlannedRequest, RequestRow

LOOK_AHEAD_S = 3.0
"""Users are there so long before the arrivals that need them."""


class ArrivalQueue:
    """Planned requests in the order of their times; times are seconds since the start of the run."""

    def __init__(self, requests: Sequence[PlannedRequest]) -> None:
        self.requests = sorted(requests, key=lambda r: r.at_s)
        self._due_s = [r.at_s for r in self.requests]
        self._next = 0
        self._users = 1
        self.rows: list[RequestRow] = []

    def take(self) -> PlannedRequest | None:
        """The next request, for one user; None when all are taken."""
        if self._next == len(self.requests):
            return None
        self._next += 1
        return self.requests[self._next - 1]

    def finish(self, row: RequestRow) -> None:
        """The request of a user has ended."""
        self.rows.append(row)

    @property
    def over(self) -> bool:
        """All requests have ended."""
        return len(self.rows) == len(self.requests)

    def users(self, now_s: float) -> int:
        """Users that should exist now: never fewer than before.

        Those whose requests are under way or late, and one for each arrival of the next seconds.
        """
        due = bisect_right(self._due_s, now_s + LOOK_AHEAD_S)
        self._users = max(self._users, due - len(self.rows))
        return self._users
