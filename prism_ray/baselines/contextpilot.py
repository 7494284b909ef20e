"""The policy ``contextpilot``: ContextPilot's reorder and schedule, over batches of what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from prism_ray.baselines.context_index import ContextIndex
from prism_ray.baselines.context_tree import Context
from prism_ray.model import Lane, Order, Skeleton
from prism_ray.parameters import at_least, checked
from prism_ray.ranking import Listed, Offer, QueuePolicy, Ranking, Waiting
from prism_ray.scheduling import POLICIES, CacheView


@POLICIES.register("contextpilot")
class ContextPilot(QueuePolicy):
    """All that waits when the last batch has left is the next batch, up to ``batch_max`` requests.

    A batch is matched with the index, reordered, inserted and scheduled as ContextPilot does it; its
    requests leave in that order. What a request's context is: the segments of its skeleton's longest
    run, each once. Requests without a run of at least two keep their order and go first, by age.
    The index keeps the last ``index_max`` contexts. No request waits for more than two batches.
    """

    name = "contextpilot"

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        given = checked(self.name, params, {"batch_max": 256, "index_max": 4096})
        at_least("batch_max", given.batch_max, 1)
        at_least("index_max", given.index_max, 1)
        super().__init__()
        self._batch_max: int = given.batch_max
        self._index = ContextIndex(given.index_max)
        self._numbers = _Numbers(given.index_max + given.batch_max)
        self._batch: dict[str, None] = {}

    def on_cancel(self, waiting: Waiting) -> None:
        self._batch.pop(waiting.id, None)

    def on_dispatch(self, replica: str, batch: Sequence[Offer]) -> None:
        for offer in batch:
            self._batch.pop(offer.waiting.id, None)

    def order_of(self, request_id: str) -> Order | None:
        """See ``scheduling.Serializing``; a request that is in no batch yet is as the client wrote it."""
        waiting = self.queue.get(request_id)
        return None if waiting is None else waiting.order

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        return Listed(self._offers({waiting.id: waiting for waiting in queue}))

    def _offers(self, mine: Mapping[str, Waiting]) -> Iterator[Offer]:
        """The batch in its order, then further batches: a round may have more to give than one."""
        batch = list(self._batch) or self._next_batch()
        while batch:
            for request_id in batch:
                if request_id in mine:
                    yield Offer(mine[request_id], Lane.HOT, "scheduled batch")
            batch = self._next_batch()

    def _next_batch(self) -> list[str]:
        """Schedule the oldest requests that are in no batch yet; their ids in order."""
        later = (waiting for waiting in self.queue.values() if waiting.id not in self._batch)
        known = len(self._batch)
        self._schedule(list(islice(later, self._batch_max)))
        return list(islice(self._batch, known, None))

    def _schedule(self, batch: list[Waiting]) -> None:
        movable = [(w, _slots(w.ticket.skeleton)) for w in batch]
        contexts = [(w, slots) for w, slots in movable if slots]
        self._batch.update({w.id: None for w, slots in movable if not slots})
        numbered = [
            self._numbers.context([w.ticket.skeleton.segments[s].id for s in slots])
            for w, slots in contexts
        ]
        for place, docs in self._index.add(numbered):
            waiting, slots = contexts[place]
            before = {number: at for at, number in enumerate(numbered[place])}
            _reorder(waiting, slots, [before[doc] for doc in docs])
            self._batch[waiting.id] = None


class _Numbers:
    """Numbers for segments in order of appearance, for as long as a context that has them is kept."""

    def __init__(self, contexts_max: int) -> None:
        self._contexts_max = contexts_max
        self._numbers: dict[bytes, int] = {}
        self._uses: Counter[bytes] = Counter()
        self._kept: list[tuple[bytes, ...]] = []
        self._next = 0

    def context(self, segments: Sequence[bytes]) -> Context:
        """The numbers of a context's segments, which are distinct."""
        for segment in segments:
            if segment not in self._numbers:
                self._numbers[segment] = self._next
                self._next += 1
            self._uses[segment] += 1
        self._kept.append(tuple(segments))
        if len(self._kept) > 2 * self._contexts_max:
            self._forget(self._contexts_max)
        return tuple(self._numbers[segment] for segment in segments)

    def _forget(self, contexts: int) -> None:
        for gone in self._kept[:contexts]:
            for segment in gone:
                self._uses[segment] -= 1
                if not self._uses[segment]:
                    del self._uses[segment], self._numbers[segment]
        del self._kept[:contexts]


def _slots(skeleton: Skeleton) -> tuple[int, ...]:
    """Slots of the longest run, without those whose segment was there before."""
    run = max(skeleton.runs, key=len, default=())
    first: dict[bytes, int] = {}
    for slot in run:
        first.setdefault(skeleton.segments[slot].id, slot)
    return tuple(first.values()) if len(first) > 1 else ()


def _reorder(waiting: Waiting, slots: Sequence[int], places: Sequence[int]) -> None:
    """Write the segments of ``slots`` in another order, in the run's first slots; repeats follow."""
    skeleton = waiting.ticket.skeleton
    run = next(run for run in skeleton.runs if slots[0] in run)
    repeats = [slot for slot in run if slot not in slots]
    order = list(skeleton.native_order)
    for slot, index in zip(run, [*(slots[place] for place in places), *repeats], strict=True):
        order[slot] = index
    waiting.order = tuple(order)
    waiting.path = skeleton.path(waiting.order)
