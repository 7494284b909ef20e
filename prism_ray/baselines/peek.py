"""The policy ``peek``: groups of the waiting queue's own prefix tree, one pioneer ahead of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from prism_ray.dart.anchors import PathKey, skeleton_marks
from prism_ray.model import Demand, Lane
from prism_ray.parameters import at_least, checked
from prism_ray.ranking import Offer, QueuePolicy, Ranking, Waiting, oldest_first
from prism_ray.scheduling import POLICIES, CacheView


@POLICIES.register("peek")
class Peek(QueuePolicy):
    """Requests of one group follow each other; a group is a subtree of the queue's prefix tree.

    Groups that have a prefix cached go first, larger savings first; then cold groups. Of a group
    whose shared prefix is neither cached nor being computed one request goes, the pioneer; the
    others wait until it is cached, unless nothing else can go. Every ``fairness`` dispatches to a
    replica one is the oldest request's (0: never). The demand table has, for each place that waiting
    prompts run through (a segment behind all that stands before it), how many of them do.
    """

    name = "peek"
    retention: ClassVar[str] = "dart"

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        defaults = {"fairness": 8, "window_max": 1024, "table_rows_max": 1024}
        given = checked(self.name, params, defaults)
        at_least("fairness", given.fairness, 0)
        at_least("window_max", given.window_max, 1)
        at_least("table_rows_max", given.table_rows_max, 0)
        super().__init__()
        self._fairness: int = given.fairness
        self._window_max: int = given.window_max
        self._rows_max: int = given.table_rows_max
        self._dispatched: dict[str, int] = {}
        self._places: dict[str, tuple[PathKey, ...]] = {}
        self._pending: Counter[PathKey] = Counter()

    def on_arrival(self, waiting: Waiting) -> None:
        places = self._places[waiting.id] = _places(waiting)
        self._pending.update(places)

    def on_cancel(self, waiting: Waiting) -> None:
        self._left(waiting)

    def on_dispatch(self, replica: str, batch: Sequence[Offer]) -> None:
        self._dispatched[replica] = self._dispatched.get(replica, 0) + len(batch)
        for offer in batch:
            self._left(offer.waiting)

    def on_forget(self, replica: str) -> None:
        self._dispatched.pop(replica, None)

    def demand(self, replica: str) -> tuple[Demand, ...]:
        rows = self._pending.most_common(self._rows_max)
        return tuple(Demand(place, float(count)) for place, count in rows)

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        window = [waiting for waiting, _ in zip(queue, range(self._window_max), strict=False)]
        return _Groups(window, queue, cache, self._fairness, self._dispatched.get(replica, 0))

    def check_integrity(self) -> None:
        super().check_integrity()
        assert self._places == {name: _places(waiting) for name, waiting in self.queue.items()}
        assert self._pending == Counter(chain.from_iterable(self._places.values()))

    def _left(self, waiting: Waiting) -> None:
        for place in self._places.pop(waiting.id):
            self._pending[place] -= 1
            if not self._pending[place]:
                del self._pending[place]


@dataclass(slots=True, eq=False)
class _Group:
    """Requests, oldest first, that share their first ``depth`` atoms: ``end`` tokens, the last
    atom's ``tokens`` among them."""

    depth: int
    end: int
    tokens: int
    members: list[Waiting]


def _in_order(window: Sequence[Waiting], cached: Mapping[str, int]) -> Iterator[Waiting]:
    """At each prefix who stops there, then its subtrees: cached ones first, larger savings first.

    Subtrees are split when their turn comes: a round seldom gets far down the line.
    """

    def key(group: _Group) -> tuple[bool, int]:
        warm = cached[group.members[0].id] >= group.end
        return not warm, -group.tokens * (len(group.members) - 1)

    stack = [_Group(0, 0, 0, list(window))]
    while stack:
        group = stack.pop()
        if len(group.members) == 1:
            yield group.members[0]
            continue
        below: dict[bytes, _Group] = {}
        for waiting in group.members:
            if len(waiting.path) == group.depth:
                yield waiting
                continue
            atom = waiting.path[group.depth]
            child = below.get(atom.id)
            if child is None:
                child = _Group(group.depth + 1, group.end + atom.tokens, atom.tokens, [])
                below[atom.id] = child
            child.members.append(waiting)
        ordered = sorted(below.values(), key=key)
        stack.extend(reversed(ordered))


class _Groups(Ranking):
    """The queue's prefix tree in order; who waits for a pioneer is passed over while others can go."""

    def __init__(
        self,
        window: Sequence[Waiting],
        queue: Collection[Waiting],
        cache: CacheView,
        fairness: int,
        position: int,
    ) -> None:
        matches = {waiting.id: cache.match(waiting.path) for waiting in window}
        self._cached = {name: match.cached_tokens for name, match in matches.items()}
        self._computing = {name: match.computing_tokens for name, match in matches.items()}
        self._line = _in_order(window, self._cached)
        self._front = next(self._line, None)
        self._oldest = oldest_first(queue)
        self._fairness = fairness
        self._position = position
        self._sent: set[tuple[bytes, ...]] = set()

    def first(self, taken: Container[str]) -> Offer | None:
        if self._fairness and self._position % self._fairness == 0:
            return self._oldest.first(taken)
        while (waiting := self._front) is not None:
            if waiting.id not in taken and not self._waits(waiting):
                return Offer(waiting, Lane.HOT, "group in turn", self._cached[waiting.id])
            self._front = next(self._line, None)  # gone, or held back for the rest of the round
        return self._oldest.first(taken)

    def took(self, offer: Offer) -> None:
        self._position += 1
        path = offer.waiting.path
        cached = self._cached.get(offer.waiting.id, 0)
        tokens = 0
        for end, atom in enumerate(path, 1):
            tokens += atom.tokens
            if tokens > cached:
                self._sent.add(tuple(a.id for a in path[:end]))

    def _waits(self, waiting: Waiting) -> bool:
        """Whether what it lacks next is being computed for somebody else."""
        cached = self._cached[waiting.id]
        if self._computing[waiting.id] > cached:
            return True
        tokens = 0
        for end, atom in enumerate(waiting.path, 1):
            tokens += atom.tokens
            if tokens > cached:
                return tuple(a.id for a in waiting.path[:end]) in self._sent
        return False


def _places(waiting: Waiting) -> tuple[PathKey, ...]:
    """Keys of the places that the prompt runs through: its system prefix, and behind each segment."""
    marks = skeleton_marks(waiting.ticket.skeleton, waiting.order)
    return tuple(mark.path_key for mark in marks if mark.path_key is not None)
