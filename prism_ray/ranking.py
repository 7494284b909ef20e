"""What policies share that rank a queue: the queue in arrival order, rounds over rankings of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, ClassVar, NamedTuple

from prism_ray.model import Atom, Demand, DemandTable, Lane, Order, Pick, Ticket
from prism_ray.scheduling import CacheView

Path = tuple[Atom, ...]


@dataclass(slots=True, eq=False)
class Waiting:
    """A queued request, the order its segments will be written in, and the path that this makes."""

    ticket: Ticket
    order: Order
    path: Path

    @property
    def id(self) -> str:
        return self.ticket.request_id

    def cached_tokens(self, cache: CacheView) -> int:
        """Tokens of the prompt that an engine would not compute: never the last one."""
        return self.usable(cache.match(self.path).cached_tokens)

    def usable(self, cached_tokens: int) -> int:
        """What of a match an engine would not compute: it needs the last token's result."""
        return min(cached_tokens, max(0, self.ticket.skeleton.prompt_tokens - 1))


class Offer(NamedTuple):
    """A request that a ranking would dispatch next, and why."""

    waiting: Waiting
    lane: Lane
    reason: str
    score: float = 0.0


class Ranking(ABC):
    """One replica's order of the queue in one round."""

    @abstractmethod
    def first(self, taken: Container[str]) -> Offer | None:
        """The first request that is not in ``taken``; changes nothing that another call would see."""

    def took(self, offer: Offer) -> None:  # noqa: B027 (most rankings do not care)
        """The replica was given what ``first`` returned last."""


class Listed(Ranking):
    """A ranking that does not depend on what is taken; its offers are drawn as they are needed."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self._offers = iter(offers)
        self._front = next(self._offers, None)

    def first(self, taken: Container[str]) -> Offer | None:
        while self._front is not None and self._front.waiting.id in taken:
            self._front = next(self._offers, None)
        return self._front


class QueuePolicy(ABC):
    """A Scheduler (see ``scheduling.Scheduler``) that ranks its queue for each replica of a round.

    A subclass says how (``rank``) and may follow what comes and goes (``on_...``). The ranking of a
    replica is made when the replica is offered something first, so its cache is seen as it was then,
    as an engine's pass sees it. Orders stay as the client wrote them unless ``on_arrival`` changes
    them; tables are empty unless ``demand`` says otherwise, so that retention falls back to recency.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.queue: OrderedDict[str, Waiting] = OrderedDict()
        self._active: dict[str, Waiting] = {}
        self._tables: dict[str, int] = {}
        self._in_round = False

    @abstractmethod
    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        """Rank what the replica may be offered, in queue order: it stays until the round is closed."""

    def on_arrival(self, waiting: Waiting) -> None:  # noqa: B027
        """A request is about to be queued."""

    def on_cancel(self, waiting: Waiting) -> None:  # noqa: B027
        """A queued request was forgotten."""

    def on_dispatch(self, replica: str, batch: Sequence[Offer]) -> None:  # noqa: B027
        """A round gave these to a replica; they have left the queue."""

    def on_finish(self, waiting: Waiting) -> None:  # noqa: B027
        """A dispatched request is gone."""

    def on_forget(self, replica: str) -> None:  # noqa: B027
        """A replica is gone for good."""

    def demand(self, replica: str) -> tuple[Demand, ...]:
        """The rows of a replica's next table, taken before its batch leaves the queue."""
        return ()

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, ticket: Ticket, *, at_head: bool = False) -> None:
        self._refuse_in_round()
        request_id = ticket.request_id
        if request_id in self.queue or request_id in self._active:
            raise ValueError(f"request {request_id!r} is already here")
        skeleton = ticket.skeleton
        order = skeleton.native_order
        waiting = Waiting(ticket, order, skeleton.path(order))
        self.on_arrival(waiting)
        self.queue[request_id] = waiting
        if at_head:
            self.queue.move_to_end(request_id, last=False)

    def cancel(self, request_id: str) -> bool:
        self._refuse_in_round()
        waiting = self.queue.pop(request_id, None)
        if waiting is None:
            return False
        self.on_cancel(waiting)
        return True

    def finish(self, request_id: str) -> bool:
        self._refuse_in_round()
        waiting = self._active.pop(request_id, None)
        if waiting is None:
            return False
        self.on_finish(waiting)
        return True

    def open_round(
        self, caches: Mapping[str, CacheView], homes: Mapping[str, str] | None = None
    ) -> RankedRound:
        self._refuse_in_round()
        self._in_round = True
        return RankedRound(self, caches, _queues(self.queue, caches, homes))

    def forget(self, replica: str) -> None:
        self._refuse_in_round()
        self.on_forget(replica)

    def waiting(self) -> Iterator[Ticket]:
        return (waiting.ticket for waiting in self.queue.values())

    def active(self) -> Iterable[Waiting]:
        """Dispatched and not finished."""
        return self._active.values()

    def describe(self, top: int = 20) -> dict[str, Any]:
        """Keys: policy, queued, active, oldest (ids of the first ``top`` in the queue)."""
        return {
            "policy": self.name,
            "queued": len(self.queue),
            "active": len(self._active),
            "oldest": list(islice(self.queue, top)),
        }

    def check_integrity(self) -> None:
        assert not self.queue.keys() & self._active.keys()
        for request_id, waiting in self.queue.items():
            assert waiting.id == request_id
            assert waiting.path == waiting.ticket.skeleton.path(waiting.order)

    def _refuse_in_round(self) -> None:
        if self._in_round:
            raise RuntimeError("a round is open: close it first")

    def _commit(self, taken: Mapping[str, list[Offer]]) -> dict[str, DemandTable]:
        self._in_round = False
        batches = {replica: batch for replica, batch in taken.items() if batch}
        tables = {}
        for replica in batches:
            self._tables[replica] = self._tables.get(replica, 0) + 1
            tables[replica] = DemandTable(self._tables[replica], self.demand(replica))
        for replica, batch in batches.items():
            for offer in batch:
                self._active[offer.waiting.id] = self.queue.pop(offer.waiting.id)
            self.on_dispatch(replica, batch)
        return tables


class RankedRound:
    """A Round (see ``scheduling.Round``): each replica is offered the first of its own ranking."""

    def __init__(
        self,
        policy: QueuePolicy,
        caches: Mapping[str, CacheView],
        queues: Mapping[str, Collection[Waiting]],
    ) -> None:
        self._policy = policy
        self._caches = caches
        self._queues = queues
        self._rankings: dict[str, Ranking] = {}
        self._offers: dict[str, tuple[Offer, Pick] | None] = dict.fromkeys(caches)
        self._batches: dict[str, list[Offer]] = {replica: [] for replica in caches}
        self._taken: set[str] = set()
        self._open = True

    def peek(self, replica: str) -> Pick | None:
        self._check(replica)
        offered = self._offers[replica]
        if offered is None or offered[0].waiting.id in self._taken:
            ranking = self._rankings.get(replica)
            if ranking is None:
                queue = self._queues[replica]
                if self._taken:
                    queue = [waiting for waiting in queue if waiting.id not in self._taken]
                ranking = self._policy.rank(replica, self._caches[replica], queue)
                self._rankings[replica] = ranking
            offer = ranking.first(self._taken)
            offered = self._offers[replica] = None if offer is None else (offer, _pick(offer))
        return None if offered is None else offered[1]

    def take(self, replica: str, pick: Pick) -> None:
        self._check(replica)
        offered = self._offers[replica]
        if offered is None or offered[1] is not pick or offered[0].waiting.id in self._taken:
            raise ValueError(f"{pick.ticket.request_id} is not what {replica} was offered last")
        offer = offered[0]
        self._rankings[replica].took(offer)
        self._taken.add(offer.waiting.id)
        self._batches[replica].append(offer)
        self._offers[replica] = None

    def close(self) -> Mapping[str, DemandTable]:
        if not self._open:
            raise RuntimeError("this round is closed")
        self._open = False
        return self._policy._commit(self._batches)

    def _check(self, replica: str) -> None:
        if not self._open:
            raise RuntimeError("this round is closed")
        if replica not in self._batches:
            raise ValueError(f"replica {replica!r} is not part of this round")


def _queues(
    queue: Mapping[str, Waiting],
    caches: Mapping[str, CacheView],
    homes: Mapping[str, str] | None,
) -> dict[str, Collection[Waiting]]:
    """What each replica may be offered: all, or those whose home it is."""
    if homes is None:
        return dict.fromkeys(caches, queue.values())
    own: dict[str, list[Waiting]] = {replica: [] for replica in caches}
    for request_id, waiting in queue.items():
        home = homes.get(request_id)
        if home in own:
            own[home].append(waiting)
    return dict(own)


def _pick(offer: Offer) -> Pick:
    waiting = offer.waiting
    return Pick(waiting.ticket, waiting.order, offer.lane, (), offer.score, offer.reason)


def listed(
    waiting: Iterable[Waiting], reason: str, lane: Lane = Lane.HOT, scores: Iterable[float] = ()
) -> Listed:
    """A ranking in the order given; ``scores`` has one for each request, or nothing."""
    return Listed(
        Offer(each, lane, reason, score or 0.0)
        for each, score in zip(waiting, chain(scores, repeat(None)), strict=False)
    )


def oldest_first(waiting: Iterable[Waiting]) -> Listed:
    """The order of the queue itself."""
    return listed(waiting, "oldest", Lane.COLD)
