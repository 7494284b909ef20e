"""95% intervals of means by resampling questions. Knows no questions; numbers in, numbers out.

The percentile bootstrap (Efron, 1979): scores are shares and steps, for which Student's interval of a
few dozen values is a poor guide. Where all values are equal the interval is that value: it says nothing
about what other questions would have shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000


class Interval(NamedTuple):
    """A mean with the lower and the upper end of its 95% interval."""

    mean: float
    low: float
    high: float


def mean_interval(
    values: Sequence[float], rng: np.random.Generator, resamples: int = RESAMPLES
) -> Interval:
    """Of the mean of ``values``, one for each question. ValueError without any."""
    if not len(values):
        raise ValueError("no values")
    data = np.asarray(values, dtype=float)
    picks = rng.integers(len(data), size=(resamples, len(data)))
    low, high = np.percentile(data[picks].mean(axis=1), (2.5, 97.5))
    return Interval(float(data.mean()), float(low), float(high))


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], rng: np.random.Generator
) -> Interval:
    """Of the mean of ours minus theirs, question by question. ValueError unless both are as many."""
    return mean_interval([a - b for a, b in zip(ours, theirs, strict=True)], rng)
