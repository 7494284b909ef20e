"""What a plan is made from: a profile as a machine, a trace as a load. The model itself is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadgen.plan.capacity import Load, Machine, Plan, knee
from loadgen.simulate import SimSpec, run
from loadgen.simulate.run import too_long
from loadgen.traces import Trace, make_trace
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams

MEASURED_AT = 0.9
"""Share of the planned knee at which a policy's hit rate is taken from a simulated run."""


def machine_of(
    params: StepParams, cost: CostModel, prefill_tokens_per_s: float | None = None
) -> Machine:
    """A profile's replica; its prefill rate is that of full chunks unless one was measured.

    Raises ValueError for a profile whose steps cost nothing.
    """
    chunk = params.chunked_prefill_tokens or params.max_prefill_tokens
    chunk_s = cost.step_s(chunk, 0, 0)
    if not chunk_s:
        raise ValueError("a profile without costs has no knee")
    return Machine(
        prefill_tokens_per_s or chunk / chunk_s,
        cost.base_s,
        cost.decode_request_s,
        cost.context_token_s,
        params.max_running,
        chunk,
    )


def load_of(trace: Trace, hit_rate: float) -> Load:
    """A trace's lengths under a hit rate that every request has alike."""
    prompts = [r.skeleton.prompt_tokens for r in trace.requests]
    return _load(trace, prompts, np.asarray(prompts) * (1 - hit_rate))


def served_trace(spec: SimSpec) -> tuple[Trace, int]:
    """The spec's trace without requests that no replica can hold, and how many those are.

    They are refused at the door, so a plan's rates are of the others. ValueError if none is left.
    """
    trace = make_trace(spec.trace, spec.seed, spec.requests, **spec.trace_options)
    params, _ = spec.machine()
    refused = too_long(trace.requests, params)
    kept = tuple(r for r in trace.requests if r.request_id not in refused)
    if not kept:
        raise ValueError(f"a replica takes no request of {spec.trace}: all are too long")
    return replace(trace, requests=kept), len(refused)


def simulated_load(spec: SimSpec, machine: Machine) -> Load:
    """The load of the spec's policy: its hit rate and variation from one run below its knee.

    The rate of that run follows from the hit rate of a first one, which is half as fast as a replica
    without a cache can be.
    """
    trace, _ = served_trace(spec)
    load = load_of(trace, 0.0)
    qps = machine.request_rate(load) / 2
    for _ in range(2):
        load = _observed(replace(spec, qps=qps * spec.replicas), trace)
        qps = MEASURED_AT * knee(load, machine, spec.requests)
    return load


def _observed(spec: SimSpec, trace: Trace) -> Load:
    served = run(spec, trace).served
    prompts = [s.ticket.skeleton.prompt_tokens for s in served]
    return _load(trace, prompts, np.asarray(prompts) - [s.cached_tokens for s in served])


def _load(trace: Trace, prompts: Sequence[int], uncached: np.ndarray) -> Load:
    mean = float(np.mean(uncached))
    return Load(
        prompt_tokens=float(np.mean(prompts)),
        output_tokens=float(np.mean([r.output_tokens for r in trace.requests])),
        hit_rate=1 - mean / float(np.mean(prompts)),
        variation=float(np.var(uncached)) / mean**2 if mean else 0.0,
    )


def plan_for(load: Load, machine: Machine, qps: float, replicas: int) -> Plan:
    """One of so many equally loaded replicas."""
    return Plan(load, machine, qps / replicas)
