"""Intervals of paired differences."""

from __future__ import annotations

from math import inf, sqrt
from statistics import stdev

import pytest

from loadgen.intervals import half_width, mean_interval


def test_three_values_have_students_interval() -> None:
    mean, half = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5)


def test_one_value_says_nothing_of_its_spread() -> None:
    assert mean_interval([4.0]) == (4.0, inf)
    assert mean_interval([]) == (0.0, 0.0)


def test_equal_values_have_no_width() -> None:
    assert mean_interval([5.0] * 40) == (5.0, 0.0)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(15, 2.131), (30, 2.042), (31, 2.040), (61, 2.0)]
)
def test_many_values_have_students_interval_too(freedom: int, quantile: float) -> None:
    values = [float(n % 2) for n in range(freedom + 1)]
    found = half_width(values) * sqrt(len(values)) / stdev(values)
    assert found == pytest.approx(quantile, abs=0.005)
