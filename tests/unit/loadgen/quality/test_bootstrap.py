"""Bootstrap intervals hold the truth about as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.quality.bootstrap import mean_interval, paired_difference


def test_an_interval_of_many_values_is_the_normal_one() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    mean, low, high = mean_interval(values.tolist(), np.random.default_rng(0))
    half = 1.96 * values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.02)


def test_it_covers_the_truth_in_about_95_of_100_samples() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(300):
        low, high = mean_interval(rng.binomial(1, 0.3, size=80).tolist(), rng, 1000)[1:]
        held += low <= 0.3 <= high
    assert 0.90 <= held / 300 <= 0.98


def test_what_both_arms_share_does_not_widen_a_paired_difference() -> None:
    theirs = np.random.default_rng(3).normal(0.0, 10.0, size=50)
    ours = theirs + 1 + np.random.default_rng(4).normal(0.0, 0.1, size=50)
    _, low, high = paired_difference(ours.tolist(), theirs.tolist(), np.random.default_rng(0))
    assert 0.9 < low < 1 < high < 1.1


def test_equal_values_have_an_interval_without_width_and_none_have_none() -> None:
    assert mean_interval([0.5] * 9, np.random.default_rng(0)) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="no values"):
        mean_interval([], np.random.default_rng(0))
    with pytest.raises(ValueError, match="argument 2"):
        paired_difference([1.0], [1.0, 2.0], np.random.default_rng(0))
