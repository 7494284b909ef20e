"""The placement ``prefix-affinity``: the rule of Ray Serve LLM's PrefixCacheAffinityRouter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from prism_ray.model import Ticket
from prism_ray.placement.base import PLACEMENTS, Choice, Path, number, refuse_unknown
from prism_ray.placement.books import Book
from prism_ray.placement.power_of_two import two_of
from prism_ray.placement.prefix_tree import PrefixTreeHoming
from prism_ray.placement.simple import least_outstanding

NAME = "prefix-affinity"
UNBOUNDED = 10**9
"""Ray's own default for the imbalance is infinity: affinity always goes first."""


class PrefixAffinity(PrefixTreeHoming):
    """While queue lengths differ by at most ``imbalanced_threshold``: the replicas with the longest
    match, or those with the smallest tree if less than ``match_rate_threshold`` of the prompt
    matches. Otherwise two at random. Of these the one with the shortest queue.

    Ray's router matches characters of the raw text; here it is tokens of the reusable front.
    """

    name = NAME

    def __init__(
        self,
        imbalanced_threshold: float = UNBOUNDED,
        match_rate_threshold: float = 0.1,
        seed: int = 0,
        tree_tokens: int = 0,
    ) -> None:
        super().__init__(tree_tokens)
        self._imbalanced = imbalanced_threshold
        self._match_rate = match_rate_threshold
        self._rng = np.random.default_rng(seed)

    def choose(self, ticket: Ticket, path: Path, books: list[Book]) -> Choice:
        queues = [book.outstanding for book in books]
        if max(queues) - min(queues) > self._imbalanced:
            best = least_outstanding(two_of(books, self._rng))
            return Choice(best.replica, "imbalanced", {"most": max(queues), "least": min(queues)})
        tokens, holders = self.matched(path, books)
        rate = tokens / max(1, ticket.skeleton.prompt_tokens)
        if not holders or rate < self._match_rate:
            best = least_outstanding(self.smallest(books))
            return Choice(best.replica, "smallest-tree", {"match_rate": rate})
        best = least_outstanding(holders)
        return Choice(best.replica, "match", {"match_rate": rate, "holders": len(holders)})


@PLACEMENTS.register(NAME)
def _prefix_affinity(params: Mapping[str, Any]) -> PrefixAffinity:
    known = ("imbalanced_threshold", "match_rate_threshold", "seed", "tree_tokens")
    refuse_unknown(NAME, params, known)
    return PrefixAffinity(
        number(params, "imbalanced_threshold", UNBOUNDED),
        number(params, "match_rate_threshold", 0.1),
        int(number(params, "seed", 0)),
        int(number(params, "tree_tokens", 0)),
    )
