"""A flood of one tenant costs another little: the promise of docs/tenants.md, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from loadgen.virtual import Arrival, Served, VirtualCluster
from prism_ray.dispatch import Dispatcher
from prism_ray.engine.limits import StepParams
from prism_ray.engine.profile import load_profile
from prism_ray.model import NO_GAP, Segment, Skeleton, Ticket
from prism_ray.placement import make_placement
from prism_ray.policies import make_fair_scheduler, make_scheduler
from prism_ray.scheduling import Scheduler

COST = load_profile("a800-qwen3-4b").cost
PARAMS = StepParams(pool_tokens=200_000, max_running=64)
SECONDS = 25.0


@dataclass(frozen=True)
class Load:
    """What one tenant asks: one of ``documents``, then ``private`` tokens, for ``output`` tokens."""

    documents: int
    document_tokens: int
    private: int
    output: int

    def arrival(self, tenant: str, number: int, at_s: float) -> Arrival:
        document = f"{tenant} {number % self.documents}".encode()
        skeleton = Skeleton(
            None, (Segment(document, self.document_tokens, run=0),), (NO_GAP,), self.private
        )
        ticket = Ticket(
            f"{tenant}{number}", skeleton, at_s, max_new_tokens=self.output, tenant=tenant.encode()
        )
        return Arrival(ticket, self.output)

    def arrivals(self, tenant: str, rate: float, seed: int) -> Iterator[Arrival]:
        rng, at_s, number = random.Random(seed), 0.0, 0
        while (at_s := at_s + rng.expovariate(rate)) < SECONDS:
            yield self.arrival(tenant, number, at_s)
            number += 1

    def capacity_per_s(self) -> float:
        """Requests per second of a replica that has nothing else to do."""
        cluster = virtual(make_scheduler("qas"))
        cluster.run(self.arrival("x", number, 0.0) for number in range(300))
        return 300 / cluster.now_s


def virtual(scheduler: Scheduler) -> VirtualCluster:
    dispatcher = Dispatcher(scheduler, make_placement("single"), "epoch")
    return VirtualCluster(dispatcher, PARAMS, COST, max_running=PARAMS.max_running)


def ttft_p99_s(served: dict[str, Served], tenant: str) -> float:
    times = sorted(s.ttft_s for s in served.values() if s.ticket.tenant == tenant.encode())
    return times[int(0.99 * len(times))]


QUIET = Load(documents=20, document_tokens=1500, private=60, output=32)
FLOODS = {
    "prefill is the bottleneck": Load(1, 2000, private=400, output=32),
    "running requests are": Load(1, 2000, private=20, output=200),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_at_twice_the_capacity_costs_another_tenant_at_most_the_bound(flood: Load) -> None:
    quiet = list(QUIET.arrivals("b", 0.1 * QUIET.capacity_per_s(), seed=2))
    both = quiet + list(flood.arrivals("a", 2 * flood.capacity_per_s(), seed=1))
    alone = ttft_p99_s(virtual(make_fair_scheduler("qas")).run(quiet), "b")
    cluster = virtual(make_fair_scheduler("qas"))
    served = cluster.run(both)
    cluster.dispatcher.check_integrity()
    assert all(request.finished_s is not None for request in served.values())
    prefill_ahead_s = cluster.capacity.prefill_ahead_tokens * COST.new_token_s
    assert ttft_p99_s(served, "b") <= 2 * alone + prefill_ahead_s
    # The flood is one: its own requests wait for seconds, which without shares the others would, too.
    assert ttft_p99_s(served, "a") > 10 * prefill_ahead_s


def test_without_shares_the_bound_does_not_hold() -> None:
    flood = FLOODS["running requests are"]
    quiet = list(QUIET.arrivals("b", 0.1 * QUIET.capacity_per_s(), seed=2))
    both = quiet + list(flood.arrivals("a", 2 * flood.capacity_per_s(), seed=1))
    assert ttft_p99_s(virtual(make_scheduler("qas")).run(both), "b") > 5.0


def test_what_the_quiet_tenant_gains_the_flooding_one_does_not_lose_in_throughput() -> None:
    flood = FLOODS["prefill is the bottleneck"]
    arrivals = list(flood.arrivals("a", 2 * flood.capacity_per_s(), seed=1))
    arrivals += list(QUIET.arrivals("b", 0.1 * QUIET.capacity_per_s(), seed=2))
    shared, plain = virtual(make_fair_scheduler("qas")), virtual(make_scheduler("qas"))
    shared.run(arrivals)
    plain.run(arrivals)
    assert shared.now_s < 1.05 * plain.now_s
