"""What a run comes to, as JSON: hit rate and its bounds, TTFT and its terms. Nothing is run here."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from loadgen.bounds import Prompt, b0, b1, b2, b3, b4, latency_floor, least_p99_s
from loadgen.checkout import git_commit
from loadgen.simulate.run import Run
from loadgen.virtual import Served

TTFT_PERCENTILES = (50, 90, 95, 99)
LATENCY_PERCENTILES = (50, 90, 99)


class BoundExceeded(RuntimeError):
    """A run hit more than can be hit: the simulator or the bound is wrong."""


def report(run: Run, known_b1: dict[str, float | None] | None = None) -> dict[str, Any]:
    """The JSON of ``prism-loadgen simulate``; times in seconds. Raises BoundExceeded.

    ``known_b1`` remembers the costliest bound by prompts, for callers that serve the same ones often.

    ``requests`` and all that follows is of those that were served; ``refused`` counts the others.
    ``queue_wait_s`` ends with the start of the first prefill batch, ``prefill_s`` with the end of the
    last; ``first_token_s`` is what follows. ``more_bounds`` are B2, of each replica's prompts one by
    one in the order in which it admitted them, and B4; None where B1 is. ``latency_floor_s`` is
    ``loadgen.bounds.latency_floor`` with the hits of B3. ``b3_wait_s`` is the D of B3 and B4: the
    longest time from an arrival until the whole prompt was in the pool; ``max_wait_s`` is the longest
    queue wait. ``ttft_p99_least_s`` estimates what no policy can go below: the same arrivals at one
    server that computes as many tokens as B3 leaves, spread by prompt length, at the rate of full
    chunks.
    """
    served = run.served
    prompt_tokens = sum(s.ticket.skeleton.prompt_tokens for s in served)
    cached_tokens = sum(s.cached_tokens for s in served)
    waits = [_at(s.admitted_s) - s.arrival_s for s in served]
    bounds = _bounds(run, cached_tokens / prompt_tokens, {} if known_b1 is None else known_b1)
    result: dict[str, Any] = {
        "simulated": True,
        "policy": run.spec.policy,
        "retention": run.spec.retention,
        "placement": run.spec.placement,
        "replicas": run.spec.replicas,
        "trace": run.trace.name,
        "profile": run.spec.profile,
        "qps": run.qps,
        "seed": run.spec.seed,
        "requests": len(served),
        "refused": len(run.refused),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "hit_rate": cached_tokens / prompt_tokens,
        "hit_rate_nonglobal": _nonglobal(served),
        "ttft_s": _spread([s.ttft_s for s in served], TTFT_PERCENTILES, largest=True),
        "queue_wait_s": _spread(waits, TTFT_PERCENTILES, largest=True),
        "prefill_s": _spread(
            [_at(s.prefilled_s) - _at(s.admitted_s) for s in served], TTFT_PERCENTILES, largest=True
        ),
        "first_token_s": _spread(
            [_at(s.first_token_s) - _at(s.prefilled_s) for s in served],
            TTFT_PERCENTILES,
            largest=True,
        ),
        "latency_s": _spread(
            [_at(s.finished_s) - s.arrival_s for s in served], LATENCY_PERCENTILES
        ),
        "tpot_s": _tpot(served),
        "max_wait_s": max(waits),
        **_pace(served),
        **bounds,
        "latency_floor_s": _floor(run, bounds["bounds"]["b3"]),
        "rounds": run.rounds,
        "retractions": run.retractions,
        "evicted_tokens": run.evicted_tokens,
        "hashes": _hashes(run),
        "notes": [*run.trace.notes, *_refusals(run)],
        "config": _config(run),
        "git_commit": git_commit(),
    }
    return result


def _refusals(run: Run) -> list[str]:
    """What a report must say of requests that were turned away; nothing if none was."""
    if not run.refused:
        return []
    return [
        f"{len(run.refused)} of {len(run.trace.requests)} requests are refused: prompt and answer "
        f"exceed the {run.params.longest_request_tokens} tokens that a replica takes"
    ]


def _at(time_s: float | None) -> float:
    assert time_s is not None, "every request of a run that is over has been answered"
    return time_s


def _spread(
    values: Sequence[float], percents: Iterable[int], *, largest: bool = False
) -> dict[str, float]:
    """Mean and percentiles (linear between neighbours)."""
    array = np.asarray(values)
    figures = {"mean": float(array.mean())}
    figures |= {f"p{percent}": float(np.percentile(array, percent)) for percent in percents}
    return figures | {"max": float(array.max())} if largest else figures


def _tpot(served: Sequence[Served]) -> float | None:
    """Mean over requests of the time per output token after the first; None if none has a second."""
    per_token = [
        (_at(s.finished_s) - _at(s.first_token_s)) / (tokens - 1)
        for s in served
        if (tokens := sum(atom.tokens for atom in s.output)) > 1
    ]
    return math.fsum(per_token) / len(per_token) if per_token else None


def _pace(served: Sequence[Served]) -> dict[str, float]:
    """Answers per second until the last one, and how many came while requests still arrived."""
    span_s = max(_at(s.finished_s) for s in served)
    return {
        "throughput_rps": len(served) / span_s if span_s else math.inf,
        "span_s": span_s,
        "arrival_period_s": max(s.arrival_s for s in served),
        "answered_in_arrival_period": answered_share(served),
    }


def answered_share(served: Sequence[Served]) -> float:
    """Share of the requests that were answered before the last one arrived."""
    last_arrival_s = max(s.arrival_s for s in served)
    return sum(_at(s.finished_s) <= last_arrival_s for s in served) / len(served)


def _nonglobal(served: Sequence[Served]) -> float | None:
    """Hit rate beyond the global prefix (``Skeleton.global_tokens``); None if there is nothing beyond."""
    beyond = hit = 0
    for s in served:
        skeleton = s.ticket.skeleton
        shared = skeleton.global_tokens
        beyond += skeleton.prompt_tokens - shared
        hit += max(0, s.cached_tokens - shared)
    return hit / beyond if beyond else None


def _bounds(run: Run, hit_rate: float, known_b1: dict[str, float | None]) -> dict[str, Any]:
    """B0, B2 and B3 for the prompts as this run wrote them, B1 and B4 for any way to write them."""
    served = run.served
    page = run.params.page_size
    prompts = [Prompt(s.path, s.arrival_s, s.output) for s in served]
    # A request that was retracted brings its prompt in again, at the latest before its end.
    kept = [_at(s.finished_s if run.retractions else s.last_chunk_s) - s.arrival_s for s in served]
    finish_s = max(_at(s.finished_s) - s.arrival_s for s in served)

    def finite(wait_s: float) -> float:
        return b3(
            prompts,
            run.params.pool_tokens,
            wait_s,
            page,
            finish_s=finish_s,
            replicas=run.spec.replicas,
            working=len({s.replica for s in served}),
        )

    most, typical = finite(max(kept)), finite(float(np.percentile(kept, 99)))
    if hit_rate > most + 1e-12:
        raise BoundExceeded(f"hit rate {hit_rate:.6f} is above B3 = {most:.6f}")
    movable = any(request.skeleton.runs for request in run.trace.requests)
    key = f"{run.trace.prompts_sha256} {page} {run.params.longest_request_tokens}"
    if key not in known_b1:
        known_b1[key] = _any_serialization(run, movable)
    any_serialization = known_b1[key]
    as_served = any_segments = None
    if any_serialization is not None:
        as_served = _as_served(run, prompts)
        any_segments = most
        if movable:
            any_segments = b4(
                prompts,
                run.params.pool_tokens * run.spec.replicas,
                max(kept),
                page,
                finish_s=finish_s,
                known_b1=any_serialization,
            )
    return {
        "bounds": {"b0": b0(prompts, page), "b1": any_serialization, "b3": most},
        "more_bounds": {"b2": as_served, "b4": any_segments},
        "b3_wait_s": max(kept),
        "efficiency": hit_rate / most if most else None,
        "efficiency_p99": hit_rate / typical if typical else None,
        "ttft_p99_least_s": _least_p99_s(run, most),
    }


def _as_served(run: Run, prompts: Sequence[Prompt]) -> float:
    """B2 of each replica's own prompts, together."""
    by_replica: dict[str, list[tuple[float, int]]] = {}
    for number, request in enumerate(run.served):
        by_replica.setdefault(request.replica, []).append((_at(request.admitted_s), number))
    hits = 0.0
    for admitted in by_replica.values():
        own = [prompts[number] for _, number in sorted(admitted)]
        tokens = sum(prompt.tokens for prompt in own)
        hits += tokens * b2(own, run.params.pool_tokens, run.params.page_size)
    return hits / sum(prompt.tokens for prompt in prompts)


def _any_serialization(run: Run, movable: bool) -> float | None:
    requests = [r for r in run.trace.requests if r.request_id not in run.refused]
    native = [Prompt(r.prompt(), 0.0, r.output) for r in requests]
    return b1(native, run.params.page_size, movable=movable)


def _least_p99_s(run: Run, most: float) -> float | None:
    """With ``most`` of all tokens hit; None for an engine whose steps take no time.

    The larger of two: prefill alone; and with decoding, counted as in full batches (its cheapest form)
    less what all requests that run at a time can put off until nobody waits.
    """
    params, cost, replicas = run.params, run.cost, run.spec.replicas
    chunk = params.chunked_prefill_tokens or params.max_prefill_tokens
    token_s = cost.step_s(chunk, 0, 0) / chunk
    if not token_s:
        return None
    served = sorted(run.served, key=lambda s: s.arrival_s)
    arrivals_s = [s.arrival_s for s in served]
    prompts = [s.ticket.skeleton.prompt_tokens for s in served]
    prefill_s = np.asarray(prompts) * (1 - most) * token_s / replicas
    batch = params.max_running
    step_s = cost.step_s(0, batch, int(batch * float(np.mean(prompts)))) / batch
    outputs = [max(0, sum(atom.tokens for atom in s.output) - 1) for s in served]
    decode_s = np.asarray(outputs) * step_s / replicas
    put_off_s = float(np.sort(decode_s)[-batch * replicas :].sum())
    return max(
        least_p99_s(arrivals_s, prefill_s.tolist()),
        least_p99_s(arrivals_s, (prefill_s + decode_s).tolist()) - put_off_s,
    )


def _floor(run: Run, hit_rate: float) -> dict[str, float | None]:
    """JSON has no infinity: None for a rate that cannot be served."""
    floor = latency_floor(
        [s.ticket.skeleton.prompt_tokens for s in run.served],
        [sum(atom.tokens for atom in s.output) for s in run.served],
        hit_rate,
        run.qps / run.spec.replicas,
        run.cost,
    )
    figures = {
        "mean": floor.mean_s,
        "p99": floor.p99_s,
        "prefill_share": floor.prefill_share,
        "decoding": floor.decoding,
    }
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _hashes(run: Run) -> dict[str, str]:
    """What must be equal in runs that are compared: prompts, arrivals, and the machine."""
    arrivals = struct.pack(f"<{len(run.arrivals_s)}d", *run.arrivals_s)
    params = asdict(run.params)
    machine = {name: params[name] for name in sorted(params) if name not in _RETENTION_FIELDS}
    pool = json.dumps([machine, asdict(run.cost), run.spec.replicas], sort_keys=True)
    return {
        "prompts": run.trace.prompts_sha256,
        "arrivals": hashlib.sha256(arrivals).hexdigest(),
        "pool": hashlib.sha256(pool.encode()).hexdigest(),
    }


_RETENTION_FIELDS = (
    "retention",
    "protect_anchors",
    "protect_share",
    "anchor_rank",
    "refresh_waiting_prefixes",
)


def _config(run: Run) -> dict[str, Any]:
    """The spec as it was run, with the engine's limits and costs in full."""
    return {
        **run.spec.to_json(),
        "knee": run.knee,
        "engine": asdict(run.params),
        "cost": asdict(run.cost),
    }
