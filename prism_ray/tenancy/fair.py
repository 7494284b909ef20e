"""A policy for each tenant behind the one Scheduler protocol, and turns among them.

What is ordered inside a tenant is its own policy's business; nothing of one tenant's window, counters
or buckets reaches another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from prism_ray.model import DemandTable, Order, Ticket
from prism_ray.scheduling import CacheView, Scheduler, Serializing, Watching
from prism_ray.tenancy.round import FairRound, Tenant
from prism_ray.tenancy.shares import FairShares
from prism_ray.tenancy.tables import DemandTables, Part

IDLE_TENANTS_MAX = 16
"""Tenants without requests whose policy (ranks of resident segments, lanes) is remembered."""


@dataclass(frozen=True, slots=True)
class TenantWeights:
    """Shares of tenants against others that wait. Raises ValueError for weights not above 0."""

    by_name: Mapping[str, float]
    default: float = 1.0

    def shares(self) -> FairShares:
        weights = {name.encode(): weight for name, weight in self.by_name.items()}
        return FairShares(weights, self.default)


class FairScheduler:
    """See the module and ``scheduling.Scheduler``. With one tenant it does what its policy does.

    Each dispatch goes to the tenant that was served least for its weight (``FairShares``), in tokens
    that are predicted to be computed: the uncached part of the prompt and the output limit.
    """

    def __init__(
        self,
        make_policy: Callable[[], Scheduler],
        weights: TenantWeights | None = None,
        idle_max: int = IDLE_TENANTS_MAX,
    ) -> None:
        """Raises what ``make_policy`` raises: it is called once at once."""
        self.shares = (weights or TenantWeights({})).shares()
        self._make_policy = make_policy
        self._spare: Scheduler | None = make_policy()
        self._policy_name = self._spare.describe(0).get("policy", "")
        self._idle_max = idle_max
        self._tenants: dict[bytes, Tenant] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._owner: dict[str, Tenant] = {}
        self._tables = DemandTables()
        self._round: FairRound | None = None

    def __len__(self) -> int:
        return sum(len(tenant.policy) for tenant in self._tenants.values())

    def add(self, ticket: Ticket, *, at_head: bool = False) -> None:
        self._refuse_in_round()
        if ticket.request_id in self._owner:
            raise ValueError(f"request {ticket.request_id!r} is already here")
        tenant = self._tenants.get(ticket.tenant) or self._admit(ticket.tenant)
        tenant.policy.add(ticket, at_head=at_head)
        self._owner[ticket.request_id] = tenant
        if not tenant.waiting:
            self._idle.pop(tenant.name, None)
            self.shares.enter(tenant.name)
        tenant.waiting += 1

    def cancel(self, request_id: str) -> bool:
        self._refuse_in_round()
        tenant = self._owner.get(request_id)
        if tenant is None or not tenant.policy.cancel(request_id):
            return False
        del self._owner[request_id]
        self._left_the_queue(tenant)
        return True

    def finish(self, request_id: str) -> bool:
        self._refuse_in_round()
        tenant = self._owner.get(request_id)
        if tenant is None or not tenant.policy.finish(request_id):
            return False
        del self._owner[request_id]
        tenant.active -= 1
        self._rest_if_idle(tenant)
        return True

    def open_round(
        self, caches: Mapping[str, CacheView], homes: Mapping[str, str] | None = None
    ) -> FairRound:
        self._refuse_in_round()
        waiting = [tenant for tenant in self._tenants.values() if tenant.waiting]
        self._round = FairRound(waiting, self.shares, caches, self._commit, homes)
        return self._round

    def order_of(self, request_id: str) -> Order | None:
        """See ``scheduling.Serializing``."""
        tenant = self._owner.get(request_id)
        if tenant is None or not isinstance(tenant.policy, Serializing):
            return None
        return tenant.policy.order_of(request_id)

    def runs(self, request_id: str) -> None:
        """See ``scheduling.Watching``."""
        tenant = self._owner.get(request_id)
        if tenant is not None and isinstance(tenant.policy, Watching):
            tenant.policy.runs(request_id)

    def forget(self, replica: str) -> None:
        self._refuse_in_round()
        for tenant in self._tenants.values():
            tenant.policy.forget(replica)
        self._tables.forget_replica(replica)

    def waiting(self) -> Iterator[Ticket]:
        """Queued tickets: of one tenant in its policy's order, of several by arrival."""
        queues = [tenant.policy.waiting() for tenant in self._tenants.values() if tenant.waiting]
        if len(queues) == 1:
            return iter(queues[0])
        return iter(sorted(chain(*queues), key=lambda ticket: ticket.arrival_s))

    def describe(self, top: int = 20) -> dict[str, Any]:
        """The policy's own state while one tenant is known; of several only totals.

        Segments, buckets and lanes would show one tenant's activity to another.
        """
        if len(self._tenants) <= 1:
            policies = [tenant.policy for tenant in self._tenants.values()]
            return (policies[0] if policies else self._spare_policy()).describe(top)
        return {
            "policy": self._policy_name,
            "queued": len(self),
            "active": sum(tenant.active for tenant in self._tenants.values()),
            "tenants": len(self._tenants),
        }

    def check_integrity(self) -> None:
        for name, tenant in self._tenants.items():
            tenant.policy.check_integrity()
            mine = sum(owner is tenant for owner in self._owner.values())
            assert tenant.name == name
            assert tenant.waiting == len(tenant.policy)
            assert tenant.waiting + tenant.active == mine
            assert (name in self._idle) == (not mine)
            assert all(ticket.tenant == name for ticket in tenant.policy.waiting())
        assert len(self._idle) <= self._idle_max
        assert all(self._tenants.get(t.name) is t for t in self._owner.values())
        self.shares.check_integrity({n for n, t in self._tenants.items() if t.waiting})
        self._tables.check_integrity(self._tenants.keys() - self._idle.keys())

    def _admit(self, name: bytes) -> Tenant:
        tenant = self._tenants[name] = Tenant(name, self._spare_policy())
        self._spare = None
        self._idle[name] = None
        return tenant

    def _spare_policy(self) -> Scheduler:
        if self._spare is None:
            self._spare = self._make_policy()
        return self._spare

    def _left_the_queue(self, tenant: Tenant) -> None:
        tenant.waiting -= 1
        if not tenant.waiting:
            self.shares.leave(tenant.name)
            self._rest_if_idle(tenant)

    def _rest_if_idle(self, tenant: Tenant) -> None:
        """Keep the policies of the tenants that were busy last, and nothing of any other."""
        if tenant.waiting or tenant.active:
            return
        self._tables.forget_tenant(tenant.name)
        self._idle[tenant.name] = None
        self._idle.move_to_end(tenant.name)
        while len(self._idle) > self._idle_max:
            name, _ = self._idle.popitem(last=False)
            del self._tenants[name]

    def _refuse_in_round(self) -> None:
        if self._round is not None:
            raise RuntimeError("a round is open: close it first")

    def _commit(
        self, parts: Mapping[str, Mapping[bytes, Part]], taken: Mapping[str, list[str]]
    ) -> dict[str, DemandTable]:
        """End of a round."""
        self._round = None
        for request_ids in taken.values():
            for request_id in request_ids:
                tenant = self._owner[request_id]
                tenant.active += 1
                self._left_the_queue(tenant)
        self.shares.settle()
        return {
            replica: self._tables.merge(replica, by_tenant, len(taken[replica]))
            for replica, by_tenant in parts.items()
        }
