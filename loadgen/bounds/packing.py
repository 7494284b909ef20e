"""How much of a set of weighted intervals fits under a capacity; knows neither prompts nor pools."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple


class Interval(NamedTuple):
    """``tokens`` that must stay resident between ``start`` and ``end``, worth one each."""

    start: float
    end: float
    tokens: int


def packed_tokens(intervals: Iterable[Interval], capacity: int) -> int:
    """The most tokens that can be kept if at no moment more than ``capacity`` are. Exact.

    Sweeps by start; where too many are open, the one that ends last is cut (greedy for intervals of
    equal worth a token; any part of an interval may be kept). Intervals that only touch don't
    overlap. O(M log M).
    """
    kept = open_tokens = 0
    left: dict[int, int] = {}
    by_end: list[tuple[float, int]] = []
    by_latest: list[tuple[float, int]] = []
    for number, interval in enumerate(sorted(intervals)):
        while by_end and by_end[0][0] <= interval.start:
            open_tokens -= left.pop(heappop(by_end)[1], 0)
        left[number] = interval.tokens
        open_tokens += interval.tokens
        kept += interval.tokens
        heappush(by_end, (interval.end, number))
        heappush(by_latest, (-interval.end, number))
        while open_tokens > capacity:
            latest = by_latest[0][1]
            cut = min(open_tokens - capacity, left.get(latest, 0))
            if cut == left.get(latest, 0):
                heappop(by_latest)
                left.pop(latest, None)
            else:
                left[latest] -= cut
            open_tokens -= cut
            kept -= cut
    return kept
