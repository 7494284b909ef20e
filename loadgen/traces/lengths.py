"""Lengths that are drawn where a source publishes only a mean. Knows no trace."""

from __future__ import annotations

import random


def draw_tokens(rng: random.Random, mean: float, variation: float = 0.4) -> int:
    """A length of at least one token, gamma-distributed around ``mean``.

    ``variation`` is the standard deviation as a share of the mean; the shape is ours.
    """
    shape = 1 / variation**2
    return max(1, round(rng.gammavariate(shape, mean / shape)))
