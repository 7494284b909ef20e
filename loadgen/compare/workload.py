"""What all arms of a comparison serve: a trace, its arrivals, the pool that goes with it.

Starts no engine. The hashes are those of simulated runs, so that a prediction can be held to serve
the same.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from loadgen.bench.retention_settings import unique_tokens
from loadgen.real.cluster import RealArrival, real_arrivals
from loadgen.traces import Trace, make_trace

POOL_SEEDS = (0, 1, 2, 3, 4)
"""The pool is a share of these seeds' mean, whichever seeds are run: resumed runs keep it."""


@dataclass(frozen=True)
class Workload:
    """A trace by name and how it arrives. ``pool_share``: of the trace's unique tokens."""

    trace: str = "multihop-rag"
    options: Mapping[str, Any] = field(default_factory=lambda: {"output_tokens": 8})
    requests: int = 200
    pool_share: float = 0.25
    process: str = "poisson"

    def made(self, seed: int) -> Trace:
        """The requests of a seed. Raises DataMissing with the data's path."""
        return make_trace(self.trace, seed, self.requests, **self.options)

    def times_s(self, trace: Trace, qps: float, seed: int) -> list[float]:
        """When each request comes."""
        return trace.arrivals(self.process, qps, seed)

    @cached_property
    def pool_tokens(self) -> int:
        """The pool in tokens; never less than two of the longest prompts need."""
        traces = [self.made(seed) for seed in POOL_SEEDS]
        made = [real_arrivals(trace, [0.0] * len(trace.requests)) for trace in traces]
        mean = sum(map(unique_tokens, made)) / len(made)
        longest = max(self._tokens(arrival) for arrivals in made for arrival in arrivals)
        return max(round(self.pool_share * mean), 2 * longest)

    @staticmethod
    def _tokens(arrival: RealArrival) -> int:
        return arrival.ticket.skeleton.prompt_tokens + arrival.output_tokens

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def hashes(trace: Trace, times_s: Sequence[float], limits: Mapping[str, Any]) -> dict[str, str]:
    """What must be equal in runs that are compared: prompts, arrivals, and the engine's limits."""
    times = struct.pack(f"<{len(times_s)}d", *times_s)
    names = sorted(limits)
    pool = "\n".join(f"{name}={limits[name]!r}" for name in names)
    return {
        "prompts": trace.prompts_sha256,
        "arrivals": hashlib.sha256(times).hexdigest(),
        "pool": hashlib.sha256(pool.encode()).hexdigest(),
    }
