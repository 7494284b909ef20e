"""The placement ``cache-aware``: the rule of the SGLang router's policy of that name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_ray.model import Ticket
from prism_ray.placement.base import PLACEMENTS, Choice, Path, number, refuse_unknown
from prism_ray.placement.books import Book
from prism_ray.placement.prefix_tree import PrefixTreeHoming
from prism_ray.placement.simple import least_outstanding

NAME = "cache-aware"


class CacheAware(PrefixTreeHoming):
    """Out of balance (queues differ by more than ``balance_abs_threshold`` requests and by more than
    a factor of ``balance_rel_threshold``): the shortest queue, whatever is cached where. Else the
    longest match if more than ``cache_threshold`` of the prompt matches, else the smallest tree.

    The router matches characters; here it is tokens of the reusable front. Its defaults.
    """

    name = NAME

    def __init__(
        self,
        cache_threshold: float = 0.3,
        balance_abs_threshold: float = 64,
        balance_rel_threshold: float = 1.5,
        tree_tokens: int = 0,
    ) -> None:
        super().__init__(tree_tokens)
        self._cache = cache_threshold
        self._absolute = balance_abs_threshold
        self._relative = balance_rel_threshold

    def choose(self, ticket: Ticket, path: Path, books: list[Book]) -> Choice:
        queues = [book.outstanding for book in books]
        most, least = max(queues), min(queues)
        if most - least > self._absolute and most > least * self._relative:
            best = least_outstanding(books)
            return Choice(best.replica, "imbalanced", {"most": most, "least": least})
        tokens, holders = self.matched(path, books)
        rate = tokens / max(1, ticket.skeleton.prompt_tokens)
        if holders and rate > self._cache:
            best = min(holders, key=lambda b: b.replica)
            return Choice(best.replica, "match", {"match_rate": rate, "holders": len(holders)})
        best = min(self.smallest(books), key=lambda b: (b.placed, b.replica))
        return Choice(best.replica, "smallest-tree", {"match_rate": rate})


@PLACEMENTS.register(NAME)
def _cache_aware(params: Mapping[str, Any]) -> CacheAware:
    known = ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold", "tree_tokens")
    refuse_unknown(NAME, params, known)
    return CacheAware(
        number(params, "cache_threshold", 0.3),
        number(params, "balance_abs_threshold", 64),
        number(params, "balance_rel_threshold", 1.5),
        int(number(params, "tree_tokens", 0)),
    )
