"""How often each segment was asked for lately: arrivals, decaying by arrivals. Forgets what faded."""

from __future__ import annotations

from collections.abc import Iterable

from prism_ray.model import SegmentId

FADED = 1 / 16
"""Below this many decayed arrivals a segment is forgotten."""


class Popularity:
    """Decayed counts; those of all segments halve with every ``half_life`` arrivals of requests."""

    def __init__(self, half_life: int) -> None:
        self._growth = 2.0 ** (1 / half_life)
        self._half_life = half_life
        self._weight = 1.0
        self._counts: dict[SegmentId, float] = {}
        self._since_sweep = 0

    def __len__(self) -> int:
        return len(self._counts)

    def arrive(self, segments: Iterable[SegmentId]) -> None:
        """A request that has these segments arrived."""
        self._weight *= self._growth  # new arrivals grow instead of old ones shrinking
        for segment in segments:
            self._counts[segment] = self._counts.get(segment, 0.0) + self._weight
        self._since_sweep += 1
        if self._since_sweep >= self._half_life:
            self._sweep()

    def of(self, segment: SegmentId) -> float:
        return self._counts.get(segment, 0.0) / self._weight

    def _sweep(self) -> None:
        self._since_sweep = 0
        least = FADED * self._weight
        self._counts = {s: c / self._weight for s, c in self._counts.items() if c >= least}
        self._weight = 1.0
