"""The policy ``preble-groups``: Preble's local scheduler, ten groups by cached fraction with shares."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from prism_ray.parameters import at_least, checked
from prism_ray.ranking import Listed, Offer, QueuePolicy, Ranking, Waiting, listed
from prism_ray.scheduling import POLICIES, CacheView


@POLICIES.register("preble-groups")
class PrebleGroups(QueuePolicy):
    """Group g of 1..groups gets a share of the dispatches proportional to g; FCFS inside a group.

    A request whose cached fraction is f is in group ceil(f * groups), at least 1. Shares are kept by
    smooth weighted round robin over the groups that have requests, for each replica across rounds,
    so that they hold whatever the number of dispatches in a round.
    """

    name = "preble-groups"

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        given = checked(self.name, params, {"groups": 10})
        at_least("groups", given.groups, 1)
        super().__init__()
        self._groups: int = given.groups
        self._owed: dict[str, list[int]] = {}

    def on_forget(self, replica: str) -> None:
        self._owed.pop(replica, None)

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        members: list[list[Waiting]] = [[] for _ in range(self._groups)]
        for waiting in queue:
            members[self._group(waiting, cache)].append(waiting)
        groups = [
            listed(group, f"group {number} of {self._groups}", scores=[number] * len(group))
            for number, group in enumerate(members, 1)
        ]
        return _Shares(groups, self._owed.setdefault(replica, [0] * self._groups))

    def _group(self, waiting: Waiting, cache: CacheView) -> int:
        """From 0; computed in whole numbers, so that no rounding moves a request."""
        prompt_tokens = waiting.ticket.skeleton.prompt_tokens
        cached = waiting.cached_tokens(cache)
        return max(1, -(-cached * self._groups // max(1, prompt_tokens))) - 1


class _Shares(Ranking):
    """Smooth weighted round robin: each turn every group is owed its weight, the most owed pays all."""

    def __init__(self, groups: Sequence[Listed], owed: list[int]) -> None:
        self._groups = groups
        self._owed = owed
        self._turn: tuple[int, dict[int, int]] | None = None

    def first(self, taken: Container[str]) -> Offer | None:
        offers = {n: offer for n, g in enumerate(self._groups) if (offer := g.first(taken))}
        if not offers:
            return None
        owed = {n: self._owed[n] + n + 1 for n in offers}
        best = max(owed, key=lambda n: (owed[n], n))
        owed[best] -= sum(n + 1 for n in offers)
        self._turn = best, owed
        return offers[best]

    def took(self, offer: Offer) -> None:
        assert self._turn is not None
        _, owed = self._turn
        for number, tokens in owed.items():
            self._owed[number] = tokens
