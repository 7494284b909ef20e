"""One round over the tenants' policies: each offer comes from the tenant whose turn it is."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prism_ray.model import DemandTable, Pick, Ticket
from prism_ray.scheduling import CacheView, Round, Scheduler
from prism_ray.tenancy.shares import FairShares, Turn
from prism_ray.tenancy.tables import Part


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant's own policy, and how many requests it has there."""

    name: bytes
    policy: Scheduler
    waiting: int = 0
    active: int = 0


class _Offer(NamedTuple):
    tenant: Tenant
    pick: Pick


Commit = Callable[
    [Mapping[str, Mapping[bytes, Part]], Mapping[str, list[str]]], Mapping[str, DemandTable]
]
"""What a round ends with, by replica: the tenants' tables, and the requests that were taken."""


class FairRound:
    """A Round (see ``scheduling.Round``) over the tenants that wait.

    A tenant's own round is opened when its turn comes first, so that a round costs what it
    dispatches and not what waits. A tenant without an offer for a replica is passed over. Any call
    after ``close`` raises RuntimeError.
    """

    def __init__(
        self,
        waiting: Iterable[Tenant],
        shares: FairShares,
        caches: Mapping[str, CacheView],
        commit: Commit,
        homes: Mapping[str, str] | None = None,
    ) -> None:
        self._homes = homes
        self._shares = shares
        self._passed: dict[str, set[bytes]] = {replica: set() for replica in caches}
        self._caches = caches
        self._commit: Commit | None = commit
        self._tenants = {tenant.name: tenant for tenant in waiting}
        self._turns: list[Turn] = sorted(map(shares.turn, self._tenants))
        self._rounds: dict[bytes, Round] = {}
        self._offers: dict[str, _Offer | None] = dict.fromkeys(caches)
        self._taken: dict[str, list[Ticket]] = {replica: [] for replica in caches}

    def peek(self, replica: str) -> Pick | None:
        self._check(replica)
        for _, _, name in self._turns:
            if name in self._passed[replica]:
                continue
            pick = self._round_of(name).peek(replica)
            if pick is not None:
                self._offers[replica] = _Offer(self._tenants[name], pick)
                return pick
        self._offers[replica] = None
        return None

    def pass_over(self, replica: str) -> bool:
        """See ``scheduling.SharedRound``."""
        self._check(replica)
        offer = self._offers[replica]
        if offer is None:
            return False
        self._passed[replica].add(offer.tenant.name)
        return any(name not in self._passed[replica] for _, _, name in self._turns)

    def take(self, replica: str, pick: Pick) -> None:
        self._check(replica)
        offer = self._offers[replica]
        if offer is None or offer.pick is not pick:
            raise ValueError(f"{pick.ticket.request_id} is not what {replica} was offered last")
        name = offer.tenant.name
        self._rounds[name].take(replica, pick)
        self._offers[replica] = None
        self._taken[replica].append(pick.ticket)
        shares = self._shares
        tokens = computed_tokens(pick, self._caches[replica]) if shares.contested else 0
        self._turns.remove(shares.turn(name))
        shares.charge(name, tokens)
        insort(self._turns, shares.turn(name))
        for passed in self._passed[replica]:
            self._turns.remove(shares.turn(passed))
            shares.forgo(passed)
            insort(self._turns, shares.turn(passed))

    def close(self) -> Mapping[str, DemandTable]:
        if self._commit is None:
            raise RuntimeError("this round is closed")
        commit, self._commit = self._commit, None
        parts: dict[str, dict[bytes, Part]] = {}
        for name, opened in self._rounds.items():
            for replica, table in opened.close().items():
                taken = enumerate(self._taken[replica])
                positions = [position for position, ticket in taken if ticket.tenant == name]
                parts.setdefault(replica, {})[name] = Part(table, positions)
        ids = {r: [t.request_id for t in tickets] for r, tickets in self._taken.items()}
        return commit(parts, ids)

    def _round_of(self, name: bytes) -> Round:
        opened = self._rounds.get(name)
        if opened is None:
            opened = self._tenants[name].policy.open_round(self._caches, self._homes)
            self._rounds[name] = opened
        return opened

    def _check(self, replica: str) -> None:
        if self._commit is None:
            raise RuntimeError("this round is closed")
        if replica not in self._caches:
            raise ValueError(f"replica {replica!r} is not part of this round")


def computed_tokens(pick: Pick, cache: CacheView) -> int:
    """What a dispatch is predicted to make an engine compute: uncached prompt and output limit."""
    skeleton = pick.ticket.skeleton
    cached = cache.match(skeleton.path(pick.order)).cached_tokens
    return max(1, skeleton.prompt_tokens - cached) + pick.ticket.max_new_tokens
