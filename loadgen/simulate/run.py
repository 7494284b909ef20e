"""Runs one spec: trace, dispatcher and virtual cluster put together. What is said of it is a report's."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from loadgen.simulate.knees import DEFAULT_LOAD, nearest_knee
from loadgen.simulate.spec import SimSpec
from loadgen.traces import Trace, TraceRequest, make_trace
from loadgen.traces.base import TRACE_CLOCK
from loadgen.virtual import Arrival, Delays, Served, VirtualCluster, anchors_of
from prism_ray.dart import Future
from prism_ray.dispatch import Dispatcher
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.model import Ticket
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler


@dataclass(frozen=True)
class Run:
    """A run that is over: what it was told, and every request in the order of the trace.

    ``arrivals_s`` are seconds since the start, one for each request of the trace. ``refused`` are the
    ids of those that no replica can hold (longer than the context or the pool): they are turned away
    at the door, as the application does it, and are not among ``served``. ``rounds`` and
    ``retractions`` count over the run. ``knee`` says where the knee comes from that ``qps`` is a share
    of, None for a rate that was given.
    """

    spec: SimSpec
    qps: float
    trace: Trace
    arrivals_s: tuple[float, ...]
    served: tuple[Served, ...]
    refused: frozenset[str]
    params: StepParams
    cost: CostModel
    rounds: int
    retractions: int
    evicted_tokens: int
    knee: str | None


BELADY = "belady"
"""The retention that knows the future: that of the same run under lru, admission by admission."""

_COLLECTED_ALLOCATIONS = 100_000


def run(spec: SimSpec, trace: Trace | None = None) -> Run:
    """Serve the spec's trace (``trace``, if it is made already) to its end.

    Requests that are too long for any replica are refused and counted. Raises BadSpec, UnknownName,
    BadProfile, UnknownKnee; ValueError if all are refused; RuntimeError if a request was lost.
    """
    spec = spec.filled()
    if trace is None:
        trace = make_trace(spec.trace, spec.seed, spec.requests, **spec.trace_options)
    futures = None
    if spec.retention == BELADY:
        futures = _futures(run(replace(spec, retention="lru"), trace).served)
    qps, arrivals_s, knee = _arrivals(spec, trace)
    params, profile = spec.machine()
    cluster = VirtualCluster(
        Dispatcher(
            make_scheduler(spec.policy, spec.policy_options),
            make_placement(spec.placement or "", spec.placement_options),
            "simulated",
            spec.round_interval_s,
        ),
        params,
        profile.cost,
        replicas=spec.replicas,
        max_running=spec.in_flight or params.max_running,
        delays=Delays(spec.plan_delay_s, spec.credit_delay_s),
        tells_cache=spec.tells_cache,
        futures=futures,
    )
    arrivals = map(_arrival, trace.requests, arrivals_s)
    refused = too_long(trace.requests, params)
    if len(refused) == len(trace.requests):
        longest = params.longest_request_tokens
        raise ValueError(f"no request of {trace.name} fits: a replica takes {longest} tokens")
    with _few_collections():
        served = cluster.run(a for a in arrivals if a.ticket.request_id not in refused)
    unfinished = [name for name, request in served.items() if request.finished_s is None]
    if unfinished:
        raise RuntimeError(f"{len(unfinished)} requests were never answered: {unfinished[:5]}")
    models = [engine.model for engine in cluster.engines.values()]
    return Run(
        spec,
        qps,
        trace,
        tuple(arrivals_s),
        tuple(served[r.request_id] for r in trace.requests if r.request_id not in refused),
        refused,
        params,
        profile.cost,
        cluster.dispatcher.rounds,
        sum(model.retractions for model in models),
        sum(model.cache.evicted_tokens for model in models),
        knee,
    )


def _arrivals(spec: SimSpec, trace: Trace) -> tuple[float, list[float], str | None]:
    """The rate, the times, and the knee's source if the rate is a share of one.

    A trace's own times are scaled only to a rate that is asked for.
    """
    if spec.arrivals == TRACE_CLOCK and spec.qps is None:
        times_s = trace.arrivals(TRACE_CLOCK)
        return len(times_s) / (max(times_s) or 1.0), times_s, None
    qps, source = spec.qps, None
    if qps is None:
        knee = nearest_knee(spec.trace, spec.profile, spec.replicas, spec.trace_options)
        qps, source = DEFAULT_LOAD * knee.qps, knee.source
    return qps, trace.arrivals(spec.arrivals, qps, spec.seed), source


@contextmanager
def _few_collections() -> Iterator[None]:
    """Let the garbage collector look less often: a run makes many small values and few cycles."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTED_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def too_long(requests: Iterable[TraceRequest], params: StepParams) -> frozenset[str]:
    """Ids of requests whose prompt and answer are more than a replica can hold."""
    return frozenset(
        request.request_id
        for request in requests
        if request.skeleton.prompt_tokens + max(1, request.output_tokens)
        > params.longest_request_tokens
    )


def _futures(served: Iterable[Served]) -> dict[str, Future]:
    """By replica, the places that its requests will use, in the order of their admission."""
    by_replica: dict[str, list[Served]] = {}
    for request in sorted(served, key=lambda s: s.admitted_s or 0.0):
        by_replica.setdefault(request.replica, []).append(request)
    return {
        replica: Future([_path_keys(request) for request in requests])
        for replica, requests in by_replica.items()
    }


def _path_keys(request: Served) -> list[bytes]:
    anchors = anchors_of(request.ticket, request.order)
    return [anchor.owner.path_key for anchor in anchors if anchor.owner.path_key]


def _arrival(request: TraceRequest, arrival_s: float) -> Arrival:
    tokens = max(1, request.output_tokens)
    ticket = Ticket(request.request_id, request.skeleton, arrival_s, max_new_tokens=tokens)
    return Arrival(ticket, tokens, request.private, request.output)
