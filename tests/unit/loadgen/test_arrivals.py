"""Arrival processes keep their rate, repeat under a seed and differ in their shape."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.arrivals import ARRIVALS, bursts, constant, poisson, ramp, recorded
from loadgen.traces.data import DataMissing, data_dir

OF_A_RECORDING = ("azure", "azure-code", "mooncake")


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", list(ARRIVALS))
def test_arrivals_ascend_repeat_under_a_seed_and_keep_their_rate(name: str) -> None:
    if name in OF_A_RECORDING and not data_dir().exists():
        pytest.skip("the data sets are not here")
    times = ARRIVALS[name](20_000, 5.0, rng())
    assert len(times) == 20_000
    assert times == sorted(times)
    assert times[0] >= 0
    assert times == ARRIVALS[name](20_000, 5.0, rng())
    assert 20_000 / times[-1] == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize("name", [n for n in ARRIVALS if n not in OF_A_RECORDING])
def test_nothing_arrives_at_no_rate(name: str) -> None:
    with pytest.raises(ValueError, match="cannot arrive"):
        ARRIVALS[name](3, 0.0, rng())
    assert ARRIVALS[name](0, 1.0, rng()) == []


@pytest.mark.parametrize("name", OF_A_RECORDING)
def test_a_recording_that_is_not_here_is_named(
    name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRISM_SHARED_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=str(tmp_path)):
        ARRIVALS[name](3, 1.0, rng())


def test_another_seed_gives_other_poisson_arrivals() -> None:
    assert poisson(5, 1.0, rng(1)) != poisson(5, 1.0, rng(2))


def test_poisson_gaps_have_the_variance_of_an_exponential() -> None:
    gaps = np.diff(poisson(50_000, 4.0, rng()))
    assert gaps.std() == pytest.approx(0.25, rel=0.03)


def test_constant_arrivals_start_at_zero_with_equal_gaps() -> None:
    assert constant(4, 2.0, rng()) == [0.0, 0.5, 1.0, 1.5]


def test_a_burst_arrives_at_one_moment_and_has_the_mean_size() -> None:
    times = bursts(50_000, 10.0, rng(), mean_size=5.0)
    _, sizes = np.unique(times, return_counts=True)
    assert sizes.mean() == pytest.approx(5.0, rel=0.05)
    with pytest.raises(ValueError, match="at least one"):
        bursts(3, 1.0, rng(), mean_size=0.5)


@pytest.mark.parametrize("low", [0.0, 0.5, 1.0, 1.8])
def test_a_ramps_rate_runs_in_a_straight_line_between_its_ends(low: float) -> None:
    times = np.array(ramp(60_000, 10.0, rng(), low=low))
    period_s = 6_000.0
    for part in range(4):
        inside = ((times >= part * period_s / 4) & (times < (part + 1) * period_s / 4)).sum()
        rate = 10.0 * (low + (2 - 2 * low) * (part + 0.5) / 4)
        assert inside / (period_s / 4) == pytest.approx(rate, rel=0.04)
    with pytest.raises(ValueError, match="a ramp starts"):
        ramp(3, 1.0, rng(), low=2.0)


def test_a_recording_keeps_the_ratios_of_its_gaps_and_goes_on_from_its_beginning() -> None:
    times = recorded([10.0, 11.0, 13.0, 17.0], 6, 2.0, rng())
    assert times[-1] == pytest.approx(3.0)
    gaps = np.diff([0.0, *times])
    assert sorted(gaps / gaps.min()) == pytest.approx([1, 1, 2, 2, 4, 4])
    starts = {recorded([0.0, 1.0, 3.0, 7.0], 3, 1.0, rng(s))[0] for s in range(20)}
    assert len(starts) == 3


def test_a_recording_without_length_is_refused() -> None:
    for times in ([], [1.0], [1.0, 1.0]):
        with pytest.raises(ValueError, match="two arrivals"):
            recorded(times, 3, 1.0, rng())
