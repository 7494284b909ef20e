"""The policy ``prism``: planned serialization over the waiting requests, pioneers, an age bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from prism_ray.dart.retention import CONTINUED
from prism_ray.model import Demand, Lane, Order, Skeleton
from prism_ray.prism.params import PrismParams
from prism_ray.prism.planner import Planner
from prism_ray.prism.popularity import Popularity
from prism_ray.prism.ranking import (
    Losses,
    Overdue,
    Planned,
    PrismRanking,
    find_resident,
    resident_places,
)
from prism_ray.prism.shape import Choice, Shape, Walker
from prism_ray.prism.shown import hot_segments, planned_fronts
from prism_ray.prism.tree import PlaceTree
from prism_ray.ranking import Offer, QueuePolicy, Waiting
from prism_ray.scheduling import POLICIES, CacheView

OVERDUE_MOST = 2048
"""Tokens that overdue requests can have a right to at once: a quarter of a chunk of 8,192."""

MATCH_ABOVE = 0.05
"""Share of what is computed that the cache had and gave up, from which on what it has left goes first.

Far from both sides: recorded agent runs lose 1% or less where the pool is large enough, 30% where not.
"""

RECENT = 32
"""Last dispatches whose segments are shown."""


@dataclass(slots=True)
class _Replica:
    """What is known of one. ``last_ranking`` outlives its round: people are shown the plan."""

    tree: PlaceTree
    right: Overdue
    losses: Losses
    ranking: PrismRanking | None = None
    last_ranking: PrismRanking | None = None
    conversations: bool = False
    hot: int = 0
    cold: int = 0


@POLICIES.register("prism")
class Prism(QueuePolicy):
    """See ``PrismParams`` for its ingredients and ``scheduling.Scheduler``."""

    name = "prism"
    retention: ClassVar[str] = "planned"

    def __init__(self, params: Mapping[str, Any] | PrismParams | None = None) -> None:
        super().__init__()
        if not isinstance(params, PrismParams):
            params = PrismParams.from_mapping(params)
        self.params = params
        self._popularity = Popularity(params.half_life)
        self._shapes: dict[str, Shape] = {}
        self._arrived: dict[str, float] = {}
        self._computed = 0.0
        self._replicas: dict[str, _Replica] = {}
        self._recent: deque[Skeleton] = deque(maxlen=RECENT)

    def on_arrival(self, waiting: Waiting) -> None:
        self._shapes[waiting.id] = Shape(waiting.ticket.skeleton)
        self._arrived[waiting.id] = self._computed
        self._popularity.arrive({s.id for s in waiting.ticket.skeleton.segments})

    def on_cancel(self, waiting: Waiting) -> None:
        del self._shapes[waiting.id], self._arrived[waiting.id]

    def on_dispatch(self, replica: str, batch: Sequence[Offer]) -> None:
        known = self._replicas[replica]
        ranking = known.ranking
        assert ranking is not None
        cold = sum(offer.lane is Lane.COLD for offer in batch)
        known.cold += cold
        known.hot += len(batch) - cold
        self._recent.extend(offer.waiting.ticket.skeleton for offer in batch)
        # A request waits for one replica's work, so what all of them compute counts by the mean.
        tokens = sum(planned.uncached_tokens for planned in ranking.taken)
        self._computed += tokens / len(self._replicas)
        for offer in batch:
            self.on_cancel(offer.waiting)
        known.ranking = None

    def on_forget(self, replica: str) -> None:
        self._replicas.pop(replica, None)

    def order_of(self, request_id: str) -> Order | None:
        """See ``scheduling.Serializing``: the order of the last plan."""
        waiting = self.queue.get(request_id)
        return None if waiting is None else waiting.order

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> PrismRanking:
        known = self._replicas.get(replica)
        if known is None:
            right = Overdue(self.params.overdue_share, OVERDUE_MOST)
            known = self._replicas[replica] = _Replica(
                PlaceTree(half_life=2 * self.params.half_life), right, Losses()
            )
        known.tree.begin(cache)
        window = list(islice(queue, self.params.window_max))
        orders = self._plan(known.tree, window)
        planned = [
            self._planned(known.tree, cache, waiting, orders.get(waiting.id)) for waiting in window
        ]
        backlog = sum(p.uncached_tokens for p in planned)
        latest = self._computed - self.params.overdue_after_tokens - backlog
        overdue = [p for p in planned if self._arrived[p.waiting.id] < latest]
        known.conversations = _conversations(planned, known.conversations)
        if self._by_match(known.conversations, known.losses):
            planned.sort(key=lambda p: -p.cached_tokens)
        known.ranking = PrismRanking(
            planned,
            overdue,
            known.right,
            known.losses,
            known.tree,
            cache,
            pioneer=self.params.pioneer,
        )
        known.ranking.conversations = known.conversations
        known.last_ranking = known.ranking
        return known.ranking

    def _by_match(self, conversations: bool, losses: Losses) -> bool:
        """Whether the longest resident prefix goes first (see ``PrismParams.order``)."""
        if self.params.order != "auto":
            return self.params.order == "match"
        return (conversations or not self.params.plan) and losses.share > MATCH_ABOVE

    def demand(self, replica: str) -> tuple[Demand, ...]:
        ranking = self._replicas[replica].ranking
        if not self.params.hints or ranking is None:
            return ()
        tree = self._replicas[replica].tree
        rows: dict[bytes, Demand] = {}
        if ranking.conversations:
            rows[CONTINUED] = Demand(CONTINUED, 1.0)
        for position, planned in enumerate(ranking.positions(self._taken_elsewhere(replica))):
            for place in resident_places(tree, planned):
                if place.key not in rows:
                    rows[place.key] = Demand(place.key, 1.0, position)
            if len(rows) >= self.params.table_rows_max:
                break
        for worth, place in tree.worth():
            if len(rows) >= self.params.table_rows_max:
                break
            rows.setdefault(place.key, Demand(place.key, worth))
        return tuple(rows.values())[: self.params.table_rows_max]

    def describe(self, top: int = 20) -> dict[str, Any]:
        """Also ``segments`` (see ``hot_segments``), ``fronts`` (see ``planned_fronts``) and by replica
        ``lanes``: cold are those overdue."""
        rankings = (known.last_ranking for known in self._replicas.values())
        return {
            **super().describe(top),
            "segments": hot_segments(
                (waiting.ticket.skeleton for waiting in self.queue.values()),
                (waiting.ticket.skeleton for waiting in self.active()),
                self._recent,
                self._popularity.of,
                top,
            ),
            "fronts": planned_fronts(filter(None, rankings), self.queue, top),
            "lanes": {
                name: {"dispatched": r.hot + r.cold, "hot": r.hot, "cold": r.cold}
                for name, r in self._replicas.items()
            },
        }

    def _plan(self, tree: PlaceTree, window: list[Waiting]) -> dict[str, Order]:
        """The orders of those that have something to choose, by request."""
        if not self.params.plan:
            return {}
        movable = [(w, Walker(shape)) for w in window if (shape := self._shapes[w.id]).movable]
        planner = Planner(tree, self._asked_for, share=self.params.share)
        planner.plan(walker for _, walker in movable)
        return {waiting.id: tuple(walker.order) for waiting, walker in movable}

    def _taken_elsewhere(self, replica: str) -> set[str]:
        """Requests that the round being closed gives to other replicas."""
        return {
            planned.waiting.id
            for name, known in self._replicas.items()
            if name != replica and known.ranking is not None
            for planned in known.ranking.taken
        }

    def _asked_for(self, choice: Choice) -> float:
        return self._popularity.of(choice.segment)

    def _planned(
        self, tree: PlaceTree, cache: CacheView, waiting: Waiting, order: Order | None
    ) -> Planned:
        if order is not None and order != waiting.order:
            waiting.order, waiting.path = order, waiting.ticket.skeleton.path(order)
        shape = self._shapes[waiting.id]
        planned = Planned(waiting, shape, waiting.order, waiting.path)
        if planned.shape.movable:
            find_resident(tree, planned)
        else:
            match = cache.match(planned.path)
            planned.cached_tokens = match.cached_tokens
            planned.resident_tokens = match.computing_tokens
        return planned


def _conversations(planned: Sequence[Planned], before: bool) -> bool:
    """Whether most have orders that cannot be planned; near a half it stays as it was.

    Each change costs the cache the keys of all its leaves.
    """
    if not planned:
        return before
    movable = sum(p.shape.movable for p in planned) / len(planned)
    return movable < (0.6 if before else 0.4)
