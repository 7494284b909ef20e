"""The placement ``power-of-two``: of two replicas drawn at random the less loaded (Ray Serve's own)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from prism_ray.model import Ticket
from prism_ray.placement.base import PLACEMENTS, Choice, Path, number, refuse_unknown
from prism_ray.placement.books import Book
from prism_ray.placement.simple import SimpleHoming, least_outstanding


class PowerOfTwo(SimpleHoming):
    """Draws from a generator of its own: equal seeds and equal requests give equal homes."""

    name = "power-of-two"

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def choose(self, ticket: Ticket, path: Path, books: list[Book]) -> Choice:
        drawn = two_of(books, self._rng)
        best = least_outstanding(drawn)
        numbers = {book.replica: book.outstanding for book in drawn}
        return Choice(best.replica, "less-loaded-of-two", numbers)


def two_of(books: list[Book], rng: np.random.Generator) -> list[Book]:
    """Two different replicas, or the only one."""
    if len(books) < 2:
        return books
    first, second = rng.choice(len(books), 2, replace=False)
    return [books[first], books[second]]


@PLACEMENTS.register("power-of-two")
def _power_of_two(params: Mapping[str, Any]) -> PowerOfTwo:
    refuse_unknown("power-of-two", params, ("seed",))
    return PowerOfTwo(int(number(params, "seed", 0)))
