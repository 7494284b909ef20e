"""The orders in which passages reach the model: as asked, by chance, and as policies dispatch them.

A policy's orders are those of a simulated run of all questions at a share of the knee: under load, with
its own retention, nothing asked of a model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen.simulate import SimSpec, run
from loadgen.traces import Trace
from prism_ray.model import Order

ORIGINAL = "original"
RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Arm:
    """Where orders come from: ``orders`` by request id. Policies' arms also say how they ran."""

    name: str
    orders: Mapping[str, Order]
    policy: str = ""
    load: float | None = None
    qps: float | None = None
    hit_rate: float | None = None


def original(trace: Trace) -> Arm:
    """Every request's segments as they were asked."""
    return Arm(ORIGINAL, {r.request_id: r.skeleton.native_order for r in trace.requests})


def drawn(trace: Trace, seed: int) -> Arm:
    """Every request's segments in an order drawn by ``seed``: any of them, the original one too."""
    orders: dict[str, Order] = {}
    for request in trace.requests:
        order = list(request.skeleton.native_order)
        random.Random(f"order-{seed}-{request.request_id}").shuffle(order)
        orders[request.request_id] = tuple(order)
    return Arm(RANDOM, orders)


def dispatched(spec: SimSpec, trace: Trace, policy: str, load: float, knee_qps: float) -> Arm:
    """The orders that ``policy`` dispatches at ``load`` times the knee, simulated.

    Raises UnknownName for a policy that there is not.
    """
    done = run(replace(spec, policy=policy, qps=load * knee_qps), trace)
    prompt = sum(s.ticket.skeleton.prompt_tokens for s in done.served)
    return Arm(
        f"{policy} at {load:g}",
        {s.ticket.request_id: s.order for s in done.served},
        policy,
        load,
        done.qps,
        sum(s.cached_tokens for s in done.served) / prompt,
    )


def asked_orders(arms: Sequence[Arm], request_id: str) -> list[Order]:
    """The different orders of one request, the first arm's first: each is asked once."""
    return list(dict.fromkeys(arm.orders[request_id] for arm in arms))
