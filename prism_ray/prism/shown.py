"""What ``prism`` shows of itself to people: segments in demand, and the fronts that its plans share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from prism_ray.model import Segment, SegmentId, Skeleton
from prism_ray.prism.ranking import Planned, PrismRanking
from prism_ray.prism.tree import Step

QUEUED_MAX = 1024
"""Oldest waiting requests whose segments are counted."""

LINE_MAX = 256
"""Requests that go next, over all replicas, of which fronts are told."""

SYSTEM = "system"
"""How a system prefix is called that has no label."""


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


class _Place:
    """Where planned prompts of one replica still are alike."""

    __slots__ = ("children", "end", "writers")

    def __init__(self, end: int) -> None:
        self.end = end
        self.children: dict[Step, _Place] = {}
        self.writers = 0


@dataclass(slots=True)
class _Front:
    """Requests of one replica that share a front with each other, and longer ones with nobody."""

    first: Planned
    slots: int
    tokens: int
    position: int
    size: int = 0
    saved_tokens: int = 0

    def row(self) -> dict[str, Any]:
        return {
            "front": list(islice(_labels(self.first), self.slots)),
            "size": self.size,
            "tokens": self.tokens,
            "saved_tokens": self.saved_tokens,
            "position": self.position,
        }


def planned_fronts(
    rankings: Iterable[PrismRanking], queued: Container[str], top: int
) -> list[dict[str, Any]]:
    """What several requests will write first, those that save most first: front, size, tokens,
    saved_tokens, position.

    ``front`` are labels, ``tokens`` its length. ``saved_tokens`` need not be computed for these
    requests, since they are cached or come with one that goes before. ``position``: how many go before
    the first of them at its replica. The lines are those of the last plans, without who went since.
    """
    fronts = [front for line in _lines(rankings, queued) for front in _fronts(line)]
    fronts.sort(key=lambda front: (-front.saved_tokens, front.position))
    return [front.row() for front in fronts[:top]]


def _lines(
    rankings: Iterable[PrismRanking], queued: Container[str]
) -> Iterator[list[tuple[int, Planned]]]:
    """Each replica's line; a request that several replicas were offered is where it goes first."""
    lines = [
        list(enumerate(p for p in ranking.line if p.waiting.id in queued)) for ranking in rankings
    ]
    best: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(lines):
        for position, planned in line:
            at = position, number
            best[planned.waiting.id] = min(at, best.get(planned.waiting.id, at))
    shown = set(sorted(best.values())[:LINE_MAX])
    for number, line in enumerate(lines):
        yield [
            (position, planned)
            for position, planned in line
            if best[planned.waiting.id] == (position, number) and (position, number) in shown
        ]


def _fronts(line: list[tuple[int, Planned]]) -> Iterable[_Front]:
    root = _Place(0)
    walks: list[tuple[int, Planned, list[_Place], int]] = []
    for position, planned in line:
        places, saved_tokens = [root], planned.cached_tokens
        for step, atoms in planned.shape.steps(planned.order):
            place = places[-1].children.get(step)
            if place is None:
                end = places[-1].end + sum(atom.tokens for atom in atoms)
                place = places[-1].children[step] = _Place(end)
            else:
                saved_tokens = max(saved_tokens, place.end)
            place.writers += 1
            places.append(place)
        walks.append((position, planned, places, saved_tokens))
    found: dict[_Place, _Front] = {}
    for position, planned, places, saved_tokens in walks:
        slots = sum(place.writers > 1 for place in places)
        if not slots:
            continue
        place = places[slots]
        front = found.get(place)
        if front is None:
            front = found[place] = _Front(planned, slots, place.end, position)
        front.size += 1
        front.saved_tokens += saved_tokens
    return found.values()


def _labels(planned: Planned) -> Iterator[str]:
    skeleton = planned.waiting.ticket.skeleton
    if skeleton.system is not None:
        yield skeleton.system.label or SYSTEM
    for index in planned.order:
        yield skeleton.segments[index].label or skeleton.segments[index].id.hex()
