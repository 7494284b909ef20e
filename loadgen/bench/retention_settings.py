"""What ``bench retention`` compares and under which conditions: arms, traces, pools, arrivals.

A setting is a trace with everything about it but the arm and the seed. No engine is started here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.real.cluster import RealArrival, real_arrivals
from loadgen.real.engines import EngineSpec
from loadgen.traces import Trace, TraceRequest, make_trace
from loadgen.traces.zipf_hotspot import ZipfHotspot

REQUESTS = 120
OUTPUT_TOKENS = 8
CONTEXT_TOKENS = 8192


class Arm(NamedTuple):
    """A retention strategy of the engine; ``refresh``: SGLang renews the recency of what waits."""

    retention: str
    refresh: bool = True


ARMS = {
    "lru": Arm("lru"),
    "lru-norefresh": Arm("lru", refresh=False),
    "lru+active": Arm("lru+active"),
    "dart": Arm("dart"),
    "next-use": Arm("next-use"),
    "lfu": Arm("lfu"),
}
DEFAULT_ARMS = ("lru", "lru-norefresh", "lru+active", "dart", "next-use")
FULL_ARMS = (*DEFAULT_ARMS, "lfu")


@dataclass(frozen=True)
class Setting:
    """A workload of ``requests`` requests and the pool that its engines get.

    ``trace`` names one of ``loadgen.traces`` (which may need data sets), empty: the bench's own small
    hot set. ``pool_share``: of the trace's unique tokens, the mean over the seeds. ``in_flight``: the
    engine's limit of running requests, and so the dispatcher's. ``rate``: requests/s.
    """

    name: str
    pool_share: float = 0.25
    rate: float = 6.0
    arrivals_process: str = "poisson"
    in_flight: int = 16
    requests: int = REQUESTS
    trace: str = ""
    trace_options: Mapping[str, Any] = field(default_factory=dict)
    policy_options: Mapping[str, Any] = field(default_factory=dict)

    def arrivals(self, seed: int) -> list[RealArrival]:
        """The requests of a seed; the same for every arm. Raises DataMissing with the data's path."""
        made = self._own(seed) if not self.trace else self._named(seed)
        return real_arrivals(made, made.arrivals(self.arrivals_process, self.rate, seed))

    def _named(self, seed: int) -> Trace:
        return make_trace(self.trace, seed, self.requests, **self.trace_options)

    def _own(self, seed: int) -> Trace:
        """Prompts of 535 tokens: what the 19M model serves about six of in a second."""
        shape = ZipfHotspot(
            seed, passages=200, segment_tokens=72, system_tokens=107, private_tokens=68
        )
        requests = tuple(
            TraceRequest(f"r{number}", skeleton, OUTPUT_TOKENS)
            for number, skeleton in enumerate(islice(shape.skeletons(), self.requests))
        )
        return Trace("hot set of 535 tokens", seed, {}, requests)

    def pool_tokens(self, seeds: Sequence[int]) -> int:
        """The pool in tokens; never less than two of the longest prompts need."""
        traces = [self.arrivals(seed) for seed in seeds]
        mean = sum(map(unique_tokens, traces)) / len(traces)
        longest = max(a.ticket.skeleton.prompt_tokens for made in traces for a in made)
        return max(round(self.pool_share * mean), 2 * (longest + OUTPUT_TOKENS))

    def engine(self, model: Path, pool_tokens: int, arm: Arm) -> EngineSpec:
        """The engine of an arm."""
        return EngineSpec(
            model,
            pool_tokens,
            max_running=self.in_flight,
            context_length=CONTEXT_TOKENS,
            retention=arm.retention,
            refresh=arm.refresh,
        )


def unique_tokens(arrivals: Sequence[RealArrival]) -> int:
    """Tokens of all prompts with every distinct piece counted once."""
    atoms = {
        atom
        for arrival in arrivals
        for atom in arrival.prompt(arrival.ticket.skeleton.native_order)
    }
    return sum(atom.tokens for atom in atoms)


STANDARD = Setting("standard")
FULL = (
    STANDARD,
    replace(STANDARD, name="pool-50", pool_share=0.5),
    replace(STANDARD, name="pool-10", pool_share=0.1),
    replace(STANDARD, name="few-in-flight", in_flight=2),
    replace(STANDARD, name="few-pool-10", in_flight=2, pool_share=0.1),
    replace(STANDARD, name="bursts", arrivals_process="bursts"),
    Setting("rag", trace="multihop-rag", trace_options={"output_tokens": OUTPUT_TOKENS}, rate=5.0),
    Setting(
        "agents",
        pool_share=0.5,
        trace="agent_prefix",
        trace_options={"concurrent": 8, "max_prompt_tokens": 6000, "output_tokens": OUTPUT_TOKENS},
        rate=3.0,
    ),
)
