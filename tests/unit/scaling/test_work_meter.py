"""The speed of an engine is taken from the time in which it has something to prefill."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_ray.scaling import WorkMeter
from prism_ray.scaling.work_meter import HALF_LIFE_S


def prefill(meter: WorkMeter, start_s: float, end_s: float, tokens: int, cached: int = 0) -> None:
    meter.began(start_s)
    meter.ended(tokens, tokens - cached, end_s)


def test_idle_time_is_not_slowness() -> None:
    meter = WorkMeter()
    prefill(meter, 0.0, 1.0, 500)
    prefill(meter, 1_000.0, 1_001.0, 500)
    assert meter.tokens_per_s == pytest.approx(500)


def test_prefills_of_one_batch_share_their_time() -> None:
    meter = WorkMeter()
    for _ in range(4):
        meter.began(0.0)
    for _ in range(4):
        meter.ended(250, 250, 2.0)
    assert meter.tokens_per_s == pytest.approx(500)


def test_cached_tokens_take_no_time_and_their_share_is_known() -> None:
    meter = WorkMeter()
    assert meter.uncached_share == 1.0
    prefill(meter, 0.0, 1.0, 1_000, cached=750)
    assert meter.tokens_per_s == pytest.approx(250)
    assert meter.uncached_share == pytest.approx(0.25)


def test_what_is_long_ago_is_forgotten() -> None:
    meter = WorkMeter()
    prefill(meter, 0.0, 1.0, 10_000)
    for n in range(10):
        prefill(meter, 10.0 + n * HALF_LIFE_S, 10.0 + (n + 1) * HALF_LIFE_S, int(100 * HALF_LIFE_S))
    assert meter.tokens_per_s == pytest.approx(100, rel=0.4)


def test_an_aborted_prefill_counts_as_time_and_not_as_tokens() -> None:
    meter = WorkMeter()
    meter.began(0.0)
    meter.dropped(1.0)
    assert meter.tokens_per_s == 0.0
    prefill(meter, 1.0, 2.0, 1_000)
    assert meter.tokens_per_s == pytest.approx(500, rel=0.03)


def test_the_busy_share_is_that_of_the_time_since_it_was_asked() -> None:
    meter = WorkMeter()
    assert meter.busy_share(0.0) == 0.0
    prefill(meter, 1.0, 2.0, 10)
    assert meter.busy_share(4.0) == pytest.approx(0.25)
    assert meter.busy_share(5.0) == 0.0
    meter.began(5.0)
    assert meter.busy_share(6.0) == 1.0
    assert meter.busy_share(6.0) == 1.0, "no time has passed: what is the case now"


def test_more_ends_than_begins_are_an_error() -> None:
    with pytest.raises(ValueError, match="no prefill is owed"):
        WorkMeter().dropped(0.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5)), max_size=40))
def test_whatever_happens_shares_are_shares(steps: list[tuple[bool, float]]) -> None:
    meter, now, owed = WorkMeter(), 0.0, 0
    for begins, passed_s in steps:
        now += passed_s
        if begins:
            meter.began(now)
            owed += 1
        elif owed:
            meter.ended(100, 40, now)
            owed -= 1
        assert 0.0 <= meter.busy_share(now) <= 1.0
        assert meter.tokens_per_s >= 0.0
        assert 0.0 < meter.uncached_share <= 1.0
