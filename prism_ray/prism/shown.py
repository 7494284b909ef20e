"""What ``prism`` shows of itself to people: segments in demand, and who went by which right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from prism_ray.model import Segment, SegmentId, Skeleton

QUEUED_MAX = 1024
"""Oldest waiting requests whose segments are counted."""


def hot_segments(
    queued: Iterable[Skeleton],
    active: Iterable[Skeleton],
    recent: Iterable[Skeleton],
    popularity: Callable[[SegmentId], float],
    top: int,
) -> list[dict[str, Any]]:
    """Rows like those of ``qas``, most asked for first: segment, label, active, queued, next, priority.

    ``next`` counts the last dispatches; ``priority`` is the decayed number of arrivals.
    """
    known: dict[SegmentId, Segment] = {}
    counts = [
        _count(skeletons, known) for skeletons in (active, islice(queued, QUEUED_MAX), recent)
    ]
    order = sorted(known, key=lambda name: (-popularity(name), name))
    return [
        {
            "segment": name.hex(),
            "label": known[name].label,
            "active": counts[0][name],
            "queued": counts[1][name],
            "next": counts[2][name],
            "priority": popularity(name),
        }
        for name in order[:top]
    ]


def _count(skeletons: Iterable[Skeleton], known: dict[SegmentId, Segment]) -> Counter[SegmentId]:
    """Requests that have each segment; ``known`` learns the segments."""
    found: Counter[SegmentId] = Counter()
    for skeleton in skeletons:
        own = {segment.id: segment for segment in skeleton.segments}
        known.update(own)
        found.update(own.keys())
    return found
