"""What is computed for a kept run: what the simulator says of it (simulated), and what can be hit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.bounds import Prompt, b4
from loadgen.compare.arms import Arm
from loadgen.compare.workload import Workload
from loadgen.simulate import SimSpec, report, run

_ENGINE = ("pool_tokens", "chunked_prefill_tokens", "max_running", "page_size")


def predict(result: Mapping[str, Any], workload: Workload, profile: str) -> dict[str, Any]:
    """Hit rate and TTFT that the simulator gives for a kept run.

    Raises ValueError if it would serve other prompts or arrivals than the run did.
    """
    arm = Arm(**result["arm"])
    limits = result["limits"]
    spec = SimSpec(
        trace=workload.trace,
        policy=arm.simulated_policy,
        retention=arm.retention,
        replicas=limits.get("replicas", 1),
        placement=_placement(arm),
        qps=result["qps"],
        seed=result["seed"],
        requests=workload.requests,
        profile=profile,
        arrivals=workload.process,
        tells_cache=arm.native or bool(result.get("tells_cache")),
        trace_options=workload.options,
        policy_options=arm.options,
        engine_options={name: limits[name] for name in _ENGINE if limits[name] is not None},
    )
    told = report(run(spec, workload.made(result["seed"])))
    for name in ("prompts", "arrivals"):
        if told["hashes"][name] != result["hashes"][name]:
            raise ValueError(f"{arm.name}, seed {result['seed']}: the {name} are not the run's")
    return {
        "hit_rate": told["hit_rate"],
        "ttft_s": {name: told["ttft_s"][name] for name in ("mean", "p50", "p90", "p99")},
        "b3": told["bounds"]["b3"],
        "evicted_tokens": told["evicted_tokens"],
    }


def hit_bound(result: Mapping[str, Any], workload: Workload) -> float:
    """B4: the hit rate that no order of a kept run's requests and segments can pass.

    Whole prompts were in the pool after their request's TTFT at the latest. Raises ValueError if the
    run hit more: its figures or the bound are wrong.
    """
    trace, limits = workload.made(result["seed"]), result["limits"]
    times_s = workload.times_s(trace, result["qps"], result["seed"])
    prompts = [
        Prompt(request.prompt(), at, request.output)
        for request, at in zip(trace.requests, times_s, strict=True)
    ]
    pool_tokens = limits["pool_tokens"] * limits.get("replicas", 1)
    wait_s, finish_s = (float(result[name]["max"]) for name in ("ttft_s", "latency_s"))
    most = b4(prompts, pool_tokens, wait_s, limits["page_size"] or 1, finish_s=finish_s)
    if result["hit_rate"] > most + 1e-12:
        raise ValueError(
            f"{result['arm']['name']}, seed {result['seed']}: hit rate {result['hit_rate']:.6f} is "
            f"above B4 = {most:.6f}"
        )
    return most


def _placement(arm: Arm) -> str | None:
    """A router's cache-aware rule is a placement of ours."""
    return "cache-aware" if arm.native and arm.placement else arm.placement or None
