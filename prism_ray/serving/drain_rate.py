"""How fast what waits leaves, measured over the recent past; feeds Retry-After. Reads no clock."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

UNKNOWN_S = 5.0
"""The answer while nothing has left yet."""

DEPARTURES_MAX = 32

MERGE_S = 0.05
"""Departures closer than this are one: an engine's batch leaves at once."""


class DrainRate:
    """Departures (of requests, tokens or bytes) over a sliding window of ``horizon_s``.

    The wait is told from the gaps between departures, not from their mean rate alone: a full batch
    that leaves every ten seconds makes room in ten seconds, however large it is.
    """

    def __init__(self, horizon_s: float = 60.0) -> None:
        self._horizon_s = horizon_s
        self._departures: deque[tuple[float, int]] = deque(maxlen=DEPARTURES_MAX)

    def add(self, amount: int, now_s: float) -> None:
        """``amount`` left now, while more was waiting."""
        last = self._departures[-1] if self._departures else None
        if last is not None and now_s - last[0] < MERGE_S:
            self._departures[-1] = (last[0], last[1] + amount)
        else:
            self._departures.append((now_s, amount))
        self._forget(now_s)

    def seconds_for(self, amount: int, now_s: float) -> float:
        """Seconds until ``amount`` more will have left.

        The first departure is expected after what remains of a typical gap (the mean of those longer
        than the time that has passed already); each further one a mean gap later.
        """
        self._forget(now_s)
        times = [at_s for at_s, _ in self._departures]
        gaps = [after - before for before, after in pairwise(times)]
        if not gaps:
            return max(now_s - times[-1], MERGE_S) if times else UNKNOWN_S
        elapsed = now_s - times[-1]
        longer = [gap for gap in gaps if gap > elapsed]
        remaining = sum(longer) / len(longer) - elapsed if longer else elapsed / 2
        mean_gap = sum(gaps) / len(gaps)
        mean_amount = sum(n for _, n in self._departures) / len(self._departures)
        departures = max(1, -(-amount // max(1, round(mean_amount))))
        return min(max(remaining, MERGE_S) + (departures - 1) * mean_gap, self._horizon_s)

    def _forget(self, now_s: float) -> None:
        while self._departures and self._departures[0][0] < now_s - self._horizon_s:
            self._departures.popleft()
