"""The policies ``lpm`` and ``lpm-uncapped``: longest cached prefix first, as SGLang sorts its queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from prism_ray.baselines.in_batch import held_back
from prism_ray.parameters import at_least, checked
from prism_ray.ranking import QueuePolicy, Ranking, Waiting, listed, oldest_first
from prism_ray.scheduling import POLICIES, CacheView

MATCHED_MAX = 128
"""Queue length above which SGLang stops matching and serves its queue as it is."""


@POLICIES.register("lpm")
class Lpm(QueuePolicy):
    """Longest prefix match. Parameters, their defaults being stock SGLang's:

    matched_max: with more requests waiting the oldest goes first; 0 for never.
    in_batch: of requests that share an uncached prefix one goes first (see ``in_batch``).
    """

    name = "lpm"
    default_matched_max = MATCHED_MAX

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        defaults = {"matched_max": self.default_matched_max, "in_batch": True}
        given = checked(self.name, params, defaults)
        at_least("matched_max", given.matched_max, 0)
        super().__init__()
        self._matched_max: int = given.matched_max
        self._in_batch: bool = given.in_batch

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        if self._matched_max and len(queue) > self._matched_max:
            return oldest_first(queue)
        return longest_prefix_first(queue, cache, in_batch=self._in_batch)


@POLICIES.register("lpm-uncapped")
class LpmUncapped(Lpm):
    """``lpm`` that matches whatever the length of the queue."""

    name = "lpm-uncapped"
    default_matched_max = 0


def longest_prefix_first(
    waiting: Collection[Waiting], cache: CacheView, *, in_batch: bool
) -> Ranking:
    """Sorted by cached tokens, longest first, those that are held back last; ties by the queue."""
    queue = list(waiting)
    matched = [cache.match(waiting.path).cached_tokens for waiting in queue]
    held = held_back(queue, matched) if in_batch else set()
    cached = [w.usable(tokens) for w, tokens in zip(queue, matched, strict=True)]
    keys = [(1, 0) if w.id in held else (0, -c) for w, c in zip(queue, cached, strict=True)]
    order = sorted(range(len(queue)), key=keys.__getitem__)
    return listed(
        (queue[n] for n in order), "longest cached prefix", scores=(cached[n] for n in order)
    )
