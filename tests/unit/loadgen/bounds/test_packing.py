from __future__ import annotations

import random
from itertools import product

import pytest

from loadgen.bounds.packing import Interval, packed_tokens


def best(intervals: list[Interval], capacity: int) -> int:
    """Every way to keep a part of each interval."""
    most = 0
    for kept in product(*(range(i.tokens + 1) for i in intervals)):
        at_starts = (
            sum(k for k, i in zip(kept, intervals, strict=True) if i.start <= moment < i.end)
            for moment in {i.start for i in intervals}
        )
        if all(load <= capacity for load in at_starts):
            most = max(most, sum(kept))
    return most


@pytest.mark.parametrize("seed", range(60))
def test_packing_keeps_as_much_as_any_choice_does(seed: int) -> None:
    rng = random.Random(seed)
    intervals = []
    for _ in range(6):
        start = rng.randint(0, 6)
        intervals.append(Interval(start, start + rng.randint(1, 4), rng.randint(1, 3)))
    capacity = rng.randint(1, 5)
    assert packed_tokens(intervals, capacity) == best(intervals, capacity)


def test_intervals_that_touch_do_not_overlap() -> None:
    assert packed_tokens([Interval(0, 1, 5), Interval(1, 2, 5)], 5) == 10
    assert packed_tokens([], 3) == 0
    assert packed_tokens([Interval(0, 1, 5)], 0) == 0
