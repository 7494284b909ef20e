"""What must be cached because something behind it is: the atoms right before resident spans.

An engine names anchors only. The fixed text before a segment (a separator, a turn's header) has no
name of its own there; which segments stand behind it is learned from the paths that were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prism_ray.cache_news import Span
from prism_ray.dart.anchors import PathKey
from prism_ray.dispatch.path_places import Place


class Fronts:
    """``resident`` counts, by path key, the spans that lie behind a place and reach beyond it."""

    def __init__(self) -> None:
        self.resident: dict[PathKey, int] = {}
        self._front_of: dict[PathKey, Place] = {}

    def learn(self, places: Sequence[Place], spans: Mapping[PathKey, Span]) -> None:
        """Each of these places has the one before it as its front."""
        front_of = self._front_of
        front = places[0] if places else None
        for place in places[1:]:
            key = place[0]
            if key not in front_of:
                assert front is not None
                front_of[key] = front
                if key in spans:
                    self.changed(key, 0, spans[key].end)
            front = place

    def changed(self, key: PathKey, before: int, now: int) -> None:
        """The span of ``key`` ends at ``now`` instead of ``before``; 0: it is not there."""
        place = self._front_of.get(key)
        if place is None:
            return
        front, end = place
        if (now >= end) != (before >= end):
            count = self.resident.get(front, 0) + (1 if now >= end else -1)
            if count:
                self.resident[front] = count
            else:
                del self.resident[front]
        if not now:
            del self._front_of[key]

    def forget(self, keys: Iterable[PathKey]) -> None:
        """Nothing is resident of these places, and nobody computes them any more."""
        for key in keys:
            self._front_of.pop(key, None)

    def check_integrity(self, spans: Mapping[PathKey, Span]) -> None:
        """Raise AssertionError unless the counts equal a recount."""
        counts: dict[PathKey, int] = {}
        for key, (front, end) in self._front_of.items():
            if key in spans and spans[key].end >= end:
                counts[front] = counts.get(front, 0) + 1
        assert counts == self.resident
