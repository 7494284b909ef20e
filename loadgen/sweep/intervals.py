"""Means with 95% confidence intervals over seeds; knows no runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from loadgen.intervals import half_width


class Interval(NamedTuple):
    """A mean and its 95% interval; the interval is None for a single value."""

    mean: float
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean of independent values. ValueError without any."""
    if not values:
        raise ValueError("no values")
    mean = fmean(values)
    if len(values) == 1:
        return Interval(mean, None, None)
    half = half_width(values)
    return Interval(mean, mean - half, mean + half)


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Of ours minus theirs, seed by seed. ValueError unless both are as many."""
    return mean_interval([a - b for a, b in zip(ours, theirs, strict=True)])


def paired_change(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Of ours / theirs - 1, seed by seed, as a geometric mean. ValueError for what is not above 0."""
    if min((*ours, *theirs)) <= 0:
        raise ValueError("a ratio needs values above 0")
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    mean, low, high = mean_interval(logs)
    return Interval(
        math.expm1(mean),
        None if low is None else math.expm1(low),
        None if high is None else math.expm1(high),
    )
