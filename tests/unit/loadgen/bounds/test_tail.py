from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.bounds import least_p99_s


def longest_stay_s(arrivals: list[float], work: list[float]) -> float:
    """In order of arrival, one after another."""
    now = longest = 0.0
    for arrival, seconds in zip(arrivals, work, strict=True):
        now = max(now, arrival) + seconds
        longest = max(longest, now - arrival)
    return longest


def brute_force_s(arrivals: list[float], work: list[float], left_out: int) -> float:
    everybody = range(len(arrivals))
    return min(
        longest_stay_s([arrivals[i] for i in kept], [work[i] for i in kept])
        for kept in combinations(everybody, len(arrivals) - left_out)
    )


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=3, max_size=8),
    st.sampled_from([99.0, 80.0, 60.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_bound_is_the_best_choice_of_requests_to_leave_out(
    requests: list[tuple[int, int]], percent: float
) -> None:
    requests.sort()
    arrivals = [float(arrival) for arrival, _ in requests]
    work = [float(seconds) for _, seconds in requests]
    last = len(requests) - 1
    left_out = last - int(percent / 100 * last)
    found = least_p99_s(arrivals, work, percent)
    assert found == pytest.approx(brute_force_s(arrivals, work, left_out), abs=2e-4)


def test_no_order_of_one_server_is_below_the_bound() -> None:
    rng = np.random.default_rng(0)
    arrivals = np.sort(rng.uniform(0, 100, 300)).tolist()
    work = rng.uniform(0.1, 0.6, 300).tolist()
    bound = least_p99_s(arrivals, work)
    now, stays = 0.0, []
    for _, arrival, seconds in sorted(zip(rng.random(300), arrivals, work, strict=True)):
        now = max(now, arrival) + seconds
        stays.append(now - arrival)
    assert 0 < bound <= np.percentile(stays, 99)
    in_order = []
    now = 0.0
    for arrival, seconds in zip(arrivals, work, strict=True):
        now = max(now, arrival) + seconds
        in_order.append(now - arrival)
    assert bound <= np.percentile(in_order, 99)


@pytest.mark.parametrize(
    ("arrivals", "work"), [([], []), ([1.0], []), ([2.0, 1.0], [1.0, 1.0]), ([1.0], [-1.0])]
)
def test_what_is_no_server_is_refused(arrivals: list[float], work: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least one|ascend"):
        least_p99_s(arrivals, work)
