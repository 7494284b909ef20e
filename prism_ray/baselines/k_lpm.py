"""The policy ``k-lpm``: the oldest request, then k - 1 longest-prefix picks (Dexter et al., 2025)."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from prism_ray.baselines.lpm import longest_prefix_first
from prism_ray.parameters import at_least, checked
from prism_ray.ranking import Offer, QueuePolicy, Ranking, Waiting, oldest_first
from prism_ray.scheduling import POLICIES, CacheView


@POLICIES.register("k-lpm")
class KLpm(QueuePolicy):
    """Cycles of k dispatches to a replica: first the oldest, then by longest cached prefix.

    A cycle goes on from round to round. k = 1 is ``fcfs``. Parameters:

    k: dispatches in a cycle.
    in_batch: of requests that share an uncached prefix one goes first (see ``in_batch``).
    """

    name = "k-lpm"

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        given = checked(self.name, params, {"k": 2, "in_batch": False})
        at_least("k", given.k, 1)
        super().__init__()
        self._k: int = given.k
        self._in_batch: bool = given.in_batch
        self._dispatched: dict[str, int] = {}

    def on_dispatch(self, replica: str, batch: Sequence[Offer]) -> None:
        self._dispatched[replica] = (self._dispatched.get(replica, 0) + len(batch)) % self._k

    def on_forget(self, replica: str) -> None:
        self._dispatched.pop(replica, None)

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        if self._k == 1:
            return oldest_first(queue)
        longest = longest_prefix_first(queue, cache, in_batch=self._in_batch)
        position = self._dispatched.get(replica, 0)
        return _Cycle(oldest_first(queue), longest, self._k, position)


class _Cycle(Ranking):
    def __init__(self, oldest: Ranking, longest: Ranking, k: int, position: int) -> None:
        self._oldest = oldest
        self._longest = longest
        self._k = k
        self._position = position

    def first(self, taken: Container[str]) -> Offer | None:
        ranking = self._longest if self._position % self._k else self._oldest
        return ranking.first(taken)

    def took(self, offer: Offer) -> None:
        self._position += 1
