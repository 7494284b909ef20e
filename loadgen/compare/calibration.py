"""What has to be known before arms are compared: SGLang's throughput, the engine's cost, its time.

The simulator's knee is a rate at which 97% of the arrivals are answered while requests still arrive. In
a run of some hundred requests that share is the chance of how the last ones bunch, so here the knee is
97% of what the best native arm answers a second when everything waits from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.compare.arms import Arm
from loadgen.compare.machine import Machine
from loadgen.compare.runs import figures
from loadgen.compare.session import Lab
from loadgen.compare.workload import Workload
from loadgen.real.cluster import real_arrivals
from loadgen.real.engines import running_engine, token_ids_for
from loadgen.real.fit import durations_s, fit_cost
from loadgen.real.profile import Measured, as_profile
from loadgen.real.session import RealRun, run_policy
from loadgen.real.steps_file import steps_file
from loadgen.sweep import KNEE_SHARE
from prism_ray.engine.base import EngineInfo
from prism_ray.engine.profile import Profile
from prism_ray.engine.sglang_steps import StepRecord

SEED = 1_000
"""Of no run that is compared."""
FLOOD_QPS = 1e6
Told = Callable[[str], None]


def find_knee(lab: Lab, arms: Sequence[Arm], told: Told) -> dict[str, Any]:
    """97% of the best arm's throughput under saturation; every run of the search is in the result."""
    trace = lab.workload.made(SEED)
    times_s = lab.workload.times_s(trace, FLOOD_QPS, SEED)
    tried = []
    for arm in arms:
        outcome = lab.serve(arm, trace, times_s)
        done = figures(outcome.served)
        tried.append(
            {
                "arm": arm.name,
                "throughput_rps": done["throughput_rps"],
                "hit_rate": done["hit_rate"],
                "span_s": done["span_s"],
                "machine_load": dict(outcome.load),
            }
        )
        told(f"knee: {arm.name} answers {done['throughput_rps']:.2f}/s when all come at once")
    best = max(tried, key=lambda run: run["throughput_rps"])
    return {
        "qps": KNEE_SHARE * best["throughput_rps"],
        "arm": best["arm"],
        "seed": SEED,
        "requests": len(times_s),
        "tried": tried,
    }


class Recorded(NamedTuple):
    """A run whose engine wrote down its steps: what it could hold, the steps, how long all took."""

    info: EngineInfo
    steps: tuple[StepRecord, ...]
    run: RealRun


async def recorded(machine: Machine, workload: Workload, arm: Arm, qps: float) -> Recorded:
    """A run of one of our arms on an engine of its own that records."""
    trace = workload.made(SEED)
    arrivals = real_arrivals(trace, workload.times_s(trace, qps, SEED))
    with steps_file() as file:
        async with running_engine(
            machine.model,
            machine.arguments(workload),
            file.environment,
            cpu=machine.cpu,
            retention=arm.retention,
        ) as engine:
            tokens = token_ids_for(Path(machine.model))
            run = await run_policy(
                engine, arrivals, tokens, policy=arm.policy, run_name="recorded", stream=True
            )
            steps = tuple(record for record in file.take() if isinstance(record, StepRecord))
    return Recorded(engine.info, steps, run)


def fitted_profile(machine: Machine, made: Recorded) -> Profile:
    """The cost of the engine's steps under the workload."""
    # The first batches pay for warming up.
    fit = fit_cost(made.steps[len(made.steps) // 10 :])
    return as_profile(machine.name, "cpu" if machine.cpu else "cuda", Measured(made.info, fit))


def where_time_goes(made: Recorded) -> dict[str, float]:
    """Shares of the time from the first arrival to the last answer: what the engine's process did.

    ``scheduling``: between a step and the next one where that followed at once (SGLang's scheduler,
    matching, eviction, messages); ``idle``: nothing to do, or nothing sent to it.
    """
    span_s = max(row.finished_s or 0.0 for row in made.run.rows)
    prefill_s = sum(step.end_s - step.begin_s for step in made.steps if step.prefill)
    decode_s = sum(step.end_s - step.begin_s for step in made.steps if not step.prefill)
    busy_s = sum(durations_s(made.steps))
    new_tokens = sum(step.new_tokens for step in made.steps)
    return {
        "span_s": span_s,
        "prefill": prefill_s / span_s,
        "decode": decode_s / span_s,
        "scheduling": (busy_s - prefill_s - decode_s) / span_s,
        "idle": 1.0 - busy_s / span_s,
        "prefilled_tokens": new_tokens,
        "prefilled_tokens_per_s": new_tokens / prefill_s if prefill_s else 0.0,
        "hit_rate": made.run.hit_rate,
    }
