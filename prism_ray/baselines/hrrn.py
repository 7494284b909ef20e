"""The policy ``hrrn``: highest response ratio next, aged by tokens, as SGLang sorts its queue."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from prism_ray.baselines.in_batch import held_back
from prism_ray.baselines.lpm import MATCHED_MAX
from prism_ray.parameters import at_least, checked
from prism_ray.ranking import Offer, QueuePolicy, Ranking, Waiting, listed, oldest_first
from prism_ray.scheduling import POLICIES, CacheView


@POLICIES.register("hrrn")
class Hrrn(QueuePolicy):
    """Ratio 1 + (tokens processed since arrival / uncached tokens), highest first; ties by id.

    A dispatch counts as processed when it is taken, at any replica: a common factor in the age of
    all does not change their order. Parameters, their defaults being stock SGLang's:

    matched_max: with more requests waiting the oldest goes first; 0 for never.
    in_batch: of requests that share an uncached prefix one goes first (see ``in_batch``).
    """

    name = "hrrn"

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        given = checked(self.name, params, {"matched_max": MATCHED_MAX, "in_batch": True})
        at_least("matched_max", given.matched_max, 0)
        super().__init__()
        self._matched_max: int = given.matched_max
        self._in_batch: bool = given.in_batch
        self._processed = 0
        self._processed_at_arrival: dict[str, int] = {}

    def on_arrival(self, waiting: Waiting) -> None:
        self._processed_at_arrival[waiting.id] = self._processed

    def on_cancel(self, waiting: Waiting) -> None:
        del self._processed_at_arrival[waiting.id]

    def on_dispatch(self, replica: str, batch: Sequence[Offer]) -> None:
        for offer in batch:
            del self._processed_at_arrival[offer.waiting.id]

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        if self._matched_max and len(queue) > self._matched_max:
            return _Counted(self, oldest_first(queue), cache)
        queue = list(queue)
        matched = [cache.match(waiting.path).cached_tokens for waiting in queue]
        held = held_back(queue, matched) if self._in_batch else set()
        ages = [
            0.0 if waiting.id in held else self._age(waiting, waiting.usable(tokens))
            for waiting, tokens in zip(queue, matched, strict=True)
        ]
        keys = [(w.id in held, -age, w.id) for w, age in zip(queue, ages, strict=True)]
        order = sorted(range(len(queue)), key=keys.__getitem__)
        ratios = (1 + ages[n] for n in order)
        ranking = listed((queue[n] for n in order), "highest response ratio", scores=ratios)
        return _Counted(self, ranking, cache)

    def process(self, tokens: int) -> None:
        """So many tokens are about to be prefilled."""
        self._processed += tokens

    def _age(self, waiting: Waiting, cached_tokens: int) -> float:
        uncached = waiting.ticket.skeleton.prompt_tokens - cached_tokens
        if uncached <= 0:
            return float("inf")
        return (self._processed - self._processed_at_arrival[waiting.id]) / uncached


class _Counted(Ranking):
    """A ranking whose dispatches let the others age."""

    def __init__(self, policy: Hrrn, ranking: Ranking, cache: CacheView) -> None:
        self._policy = policy
        self._ranking = ranking
        self._cache = cache

    def first(self, taken: Container[str]) -> Offer | None:
        return self._ranking.first(taken)

    def took(self, offer: Offer) -> None:
        waiting = offer.waiting
        prompt_tokens = waiting.ticket.skeleton.prompt_tokens
        self._policy.process(prompt_tokens - waiting.cached_tokens(self._cache))
