"""How many replicas the work needs: bounded, without flapping, and waiting where it is not known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_ray.scaling import ReplicaWork, Targets, replicas_wanted

TARGETS = Targets(least=1, most=8)
RATE = 1_000.0
IDLE = ReplicaWork(0, 0, RATE, 0.0)

TOKENS = st.floats(0, 1e6)
WORK = st.builds(ReplicaWork, TOKENS, TOKENS, st.just(0.0) | st.floats(1, 1e5), st.floats(0, 1))


def shared(work_s: float, busy: float, among: int) -> list[ReplicaWork]:
    """So much in all, shared equally: seconds of one replica, replicas that are busy all the time."""
    return [ReplicaWork(RATE * work_s / among, 0, RATE, busy / among)] * among


def wanted(work_s: float, busy: float, now: int, targets: Targets = TARGETS) -> int:
    return replicas_wanted(shared(work_s, busy, now), now, targets)


class TestNumber:
    def test_without_work_the_least(self) -> None:
        assert replicas_wanted([IDLE] * 5, 5, TARGETS) == 1
        assert replicas_wanted([IDLE] * 5, 5, replace(TARGETS, least=2)) == 2

    def test_waiting_prefill_is_shared_at_the_high_mark(self) -> None:
        assert wanted(work_s=2.0, busy=0.5, now=1) == 1
        assert wanted(work_s=2.1, busy=0.5, now=1) == 2
        assert wanted(work_s=9.0, busy=0.5, now=1) == 5
        assert wanted(work_s=1e6, busy=0.5, now=1) == 8

    def test_what_was_sent_and_not_prefilled_waits_too(self) -> None:
        assert replicas_wanted([ReplicaWork(1_000, 2_100, RATE, 0.5)], 1, TARGETS) == 2

    def test_seconds_are_of_the_measured_speed(self) -> None:
        one = ReplicaWork(10_000, 0, 10_000, 0.5)
        assert replicas_wanted([one], 1, TARGETS) == 1
        assert replicas_wanted([replace(one, prefill_tokens_per_s=1_000)], 1, TARGETS) == 5

    def test_a_replica_without_a_measured_speed_is_taken_for_one_like_the_others(self) -> None:
        new = ReplicaWork(1_500, 0, 0.0, 0.5)
        assert replicas_wanted([new, replace(new, prefill_tokens_per_s=RATE)], 2, TARGETS) == 2
        assert replicas_wanted([new, replace(new, prefill_tokens_per_s=RATE / 2)], 2, TARGETS) == 3

    def test_with_no_speed_measured_only_busy_shares_count(self) -> None:
        assert replicas_wanted([ReplicaWork(1e9, 1e9, 0.0, 0.5)], 1, TARGETS) == 1
        assert replicas_wanted([ReplicaWork(1e9, 1e9, 0.0, 1.0)], 1, TARGETS) == 2

    def test_replicas_that_are_busy_all_the_time_need_help_without_a_queue(self) -> None:
        assert wanted(work_s=0.0, busy=1.0, now=1) == 2
        assert wanted(work_s=0.0, busy=4.0, now=4) == 5

    def test_a_sum_that_rounding_lifts_over_a_mark_is_at_the_mark(self) -> None:
        told = [ReplicaWork(0, 0, RATE, busy) for busy in (0.1, 0.2, 0.3)]
        assert sum(replica.busy for replica in told) > 0.6
        assert replicas_wanted(told, 1, replace(TARGETS, busy_high=0.6)) == 1

    def test_one_is_given_up_only_if_the_others_stay_below_the_low_marks(self) -> None:
        assert wanted(work_s=0.0, busy=1.1, now=3) == 3
        assert wanted(work_s=0.0, busy=1.0, now=3) == 2
        assert wanted(work_s=0.9, busy=0.0, now=3) == 2
        assert wanted(work_s=1.1, busy=0.0, now=3) == 3


class TestWaiting:
    def test_while_some_start_no_more_are_asked_for(self) -> None:
        loaded = shared(work_s=100.0, busy=1.0, among=1)
        assert replicas_wanted(loaded, 1, TARGETS) == 8
        assert replicas_wanted(loaded, 3, TARGETS) == 3

    def test_while_some_start_fewer_can_still_do(self) -> None:
        assert replicas_wanted([IDLE], 3, TARGETS) == 1

    def test_while_nothing_is_known_of_one_none_is_given_up(self) -> None:
        assert replicas_wanted([IDLE, None, IDLE], 3, TARGETS) == 3

    def test_while_nothing_is_known_of_one_more_can_be_asked_for(self) -> None:
        busy = ReplicaWork(20_000, 0, RATE, 1.0)
        assert replicas_wanted([busy, None], 2, TARGETS) == 8

    def test_where_nothing_is_known_at_all_nothing_changes(self) -> None:
        assert replicas_wanted([None, None], 2, TARGETS) == 2
        assert replicas_wanted([], 0, TARGETS) == 1


class TestAlways:
    @given(st.lists(WORK | st.none(), max_size=6), st.integers(0, 20), st.integers(1, 4))
    def test_the_number_is_within_its_bounds(
        self, replicas: list[ReplicaWork | None], asked_for: int, least: int
    ) -> None:
        targets = Targets(least=least, most=6)
        assert least <= replicas_wanted(replicas, asked_for, targets) <= 6

    @given(st.floats(0, 40), st.floats(0, 8), st.integers(1, 8))
    def test_a_load_that_stays_is_answered_once(self, work_s: float, busy: float, now: int) -> None:
        first = wanted(work_s, min(busy, now), now)
        assert wanted(work_s, min(busy, now), first) == first

    @given(st.floats(0, 40), st.floats(0, 1), st.integers(1, 8), st.floats(0, 10))
    def test_more_work_never_asks_for_fewer(
        self, work_s: float, busy: float, now: int, more_s: float
    ) -> None:
        assert wanted(work_s + more_s, busy, now) >= wanted(work_s, busy, now)

    @given(
        st.sampled_from([2.0, 4.0, 0.5, 1.0]),
        st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=30),
        st.integers(1, 8),
    )
    def test_noise_around_a_mark_does_not_make_it_flap(
        self, mark_s: float, noise: list[float], now: int
    ) -> None:
        """It may follow the noise one way, and never back."""
        seen = [now]
        for share in noise:
            seen.append(wanted(mark_s * (1 + share), 0.0, seen[-1]))
        ways = {b > a for a, b in pairwise(seen) if a != b}
        assert len(ways) <= 1

    @given(st.lists(WORK, min_size=1, max_size=6), st.randoms(use_true_random=False))
    def test_replicas_have_no_order(self, replicas: list[ReplicaWork], random: Any) -> None:
        mixed = list(replicas)
        random.shuffle(mixed)
        assert replicas_wanted(mixed, 3, TARGETS) == replicas_wanted(replicas, 3, TARGETS)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"least": 3, "most": 2}, "most"),
        ({"least": 0}, "least"),
        ({"work_low_s": 2.0}, "work_low_s"),
        ({"busy_low": 0.9}, "busy_low"),
        ({"busy_high": 1.5}, "busy_high"),
        ({"work_high_s": float("inf")}, "work_high_s"),
        ({"work_high_s": -1.0}, "work_high_s"),
    ],
)
def test_targets_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}:"):
        Targets(**wrong)
