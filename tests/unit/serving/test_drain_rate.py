"""What a client is told to wait, from the departures that were seen."""

from __future__ import annotations

import random

import pytest

from prism_ray.serving.drain_rate import UNKNOWN_S, DrainRate


def steady(gap_s: float, batch: int = 1, departures: int = 10) -> DrainRate:
    rate = DrainRate()
    for number in range(departures):
        for _ in range(batch):
            rate.add(1, number * gap_s)
    return rate


class TestDrainRate:
    @pytest.mark.parametrize("gap_s", [0.5, 4.0])
    def test_the_next_departure_of_a_steady_flow_is_foretold(self, gap_s: float) -> None:
        last_s = 9 * gap_s
        rate = steady(gap_s)
        for passed in (0.0, 0.25, 0.5, 0.75):
            wait = rate.seconds_for(1, last_s + passed * gap_s)
            assert wait == pytest.approx((1 - passed) * gap_s)

    def test_more_departures_take_as_many_gaps(self) -> None:
        assert steady(2.0).seconds_for(3, 18.0) == pytest.approx(6.0)

    def test_a_batch_makes_room_for_as_many_at_once(self) -> None:
        rate = steady(5.0, batch=8)
        assert rate.seconds_for(1, 45.0) == pytest.approx(5.0)
        assert rate.seconds_for(8, 45.0) == pytest.approx(5.0)
        assert rate.seconds_for(9, 45.0) == pytest.approx(10.0)

    def test_irregular_departures_are_foretold_on_average(self) -> None:
        rng = random.Random(1)
        rate = DrainRate()
        now_s, ask_s, told, waited = 0.0, 100.0, [], []
        for _ in range(2000):
            next_s = now_s + rng.expovariate(0.5)
            while ask_s < next_s:  # asked at moments that know nothing of departures
                told.append(rate.seconds_for(1, ask_s))
                waited.append(next_s - ask_s)
                ask_s += 1.0
            now_s = next_s
            rate.add(1, now_s)
        assert 0.8 < sum(told) / sum(waited) < 1.2

    def test_a_changed_pace_is_followed(self) -> None:
        rate = steady(4.0)
        for number in range(1, 60):
            rate.add(1, 36.0 + number * 0.25)
        assert rate.seconds_for(1, 36.0 + 59 * 0.25) == pytest.approx(0.25)

    def test_before_anything_left_a_fixed_time_is_told(self) -> None:
        assert DrainRate().seconds_for(1, 100.0) == UNKNOWN_S

    def test_what_is_older_than_the_horizon_is_forgotten(self) -> None:
        rate = DrainRate(horizon_s=10.0)
        rate.add(5, 0.0)
        rate.add(5, 1.0)
        assert rate.seconds_for(1, 60.0) == UNKNOWN_S

    def test_no_wait_is_longer_than_the_horizon(self) -> None:
        rate = DrainRate(horizon_s=10.0)
        rate.add(1, 0.0)
        rate.add(1, 9.0)
        assert rate.seconds_for(100, 9.0) == 10.0
