"""The settings of ``bench cluster`` in virtual time: what placements differ by on an undisturbed machine.

The product's simulator with a plain cost: so much a step, so much a computed token. Simulated, never
measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loadgen.bench.cluster_settings import ARMS
from loadgen.bench.retention_settings import Setting
from loadgen.bounds import Prompt, bounds_beside
from loadgen.metrics import spread
from loadgen.virtual import Arrival, Delays, Served, VirtualCluster
from prism_ray.dispatch import Dispatcher
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler

REPORT_S = 0.002
"""How long a plan and an engine's report take here."""


def simulated_row(
    setting: Setting,
    arm: str,
    seed: int,
    pool_tokens: int,
    policy: str,
    replicas: int,
    cost: CostModel,
    params: StepParams,
) -> dict[str, Any]:
    """One run of one arm: the keys that ``cluster.table`` reads, and ``simulated``."""
    limits = replace(
        params,
        pool_tokens=pool_tokens,
        chunked_prefill_tokens=1024,
        max_running=setting.in_flight,
    )
    placed = ARMS[arm]
    cluster = VirtualCluster(
        Dispatcher(
            make_scheduler(policy), make_placement(placed.placement, placed.options), "simulated"
        ),
        limits,
        cost,
        replicas=replicas,
        max_running=setting.in_flight,
        delays=Delays(REPORT_S, REPORT_S),
    )
    served: Sequence[Served] = list(
        cluster.run(Arrival(a.ticket, a.output_tokens) for a in setting.arrivals(seed)).values()
    )
    prompts = sum(one.ticket.skeleton.prompt_tokens for one in served)
    ends = [one.finished_s - one.arrival_s for one in served if one.finished_s is not None]
    bounds = bounds_beside(
        [Prompt(one.path, one.arrival_s, one.output) for one in served],
        movable=any(one.ticket.skeleton.runs for one in served),
        pool_tokens=pool_tokens * replicas,
        wait_s=max(ends),
    )
    return {
        "simulated": True,
        "setting": setting.name,
        "arm": arm,
        "seed": seed,
        "rate": setting.rate,
        "pool_tokens": pool_tokens,
        "requests": len(served),
        "hit_rate": sum(one.cached_tokens or 0 for one in served) / prompts,
        "bounds": bounds,
        "ttft_s": spread(one.ttft_s for one in served),
        "requests_by_replica": dict(sorted(Counter(one.replica for one in served).items())),
    }
