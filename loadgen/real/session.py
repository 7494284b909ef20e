"""One run of one policy on real engines, from empty caches: what measurements are made of."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.real.cluster import RealArrival, RealCluster, StartedEngine, Submission
from loadgen.real.engines import flushed
from loadgen.real.rows import RealRow, hit_rate
from loadgen.real.token_ids import AtomTokens
from prism_ray.dispatch import Dispatcher
from prism_ray.engine.base import EngineLoad
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler

EPOCH = "real"
_EVICTED = "evicted_tokens_"
_IGNORED = "hints_ignored_total"
SETTLE_S = 0.2
"""The scheduler process writes what it recorded a moment after the last answer is here."""


@dataclass(frozen=True, slots=True)
class RealRun:
    """A finished run: rows in order of arrival, what the engines were given, and their evictions.

    ``evicted_by_class``: by what the tokens were, where the engine's cache counts that; else empty.
    ``hints_ignored``: anchors and demand tables that its cache could not read.
    """

    rows: tuple[RealRow, ...]
    submissions: tuple[Submission, ...]
    evicted_tokens: int
    evicted_by_class: Mapping[str, int]
    wall_s: float
    began_s: float
    hints_ignored: int = 0
    report_delays_s: tuple[float, ...] = field(default=(), repr=False)

    @property
    def hit_rate(self) -> float:
        return hit_rate(list(self.rows))

    @property
    def ttfts_s(self) -> list[float]:
        """Of the requests that got a token."""
        return [row.ttft_s for row in self.rows if row.first_token_s is not None]


async def run_policy(
    started: StartedEngine,
    arrivals: Sequence[RealArrival],
    tokens: AtomTokens,
    *,
    policy: str,
    options: Mapping[str, Any] | None = None,
    epoch: str = EPOCH,
    run_name: str = "",
    gaps: bool = False,
    stream: bool = False,
) -> RealRun:
    """``run_placed`` on one engine, where nothing is to be placed."""
    return await run_placed(
        {"replica": started},
        arrivals,
        tokens,
        policy=policy,
        options=options,
        epoch=epoch,
        run_name=run_name,
        gaps=gaps,
        stream=stream,
    )


async def run_placed(
    engines: Mapping[str, StartedEngine],
    arrivals: Sequence[RealArrival],
    tokens: AtomTokens,
    *,
    policy: str,
    options: Mapping[str, Any] | None = None,
    placement: str = "single",
    placement_options: Mapping[str, Any] | None = None,
    epoch: str = EPOCH,
    run_name: str = "",
    gaps: bool = False,
    stream: bool = False,
) -> RealRun:
    """Flush the engines, serve the arrivals under ``policy`` and ``placement``, wait for the last.

    ``run_name`` must be new for each run of an engine. ``epoch`` names the scheduler's life: demand
    tables of another one do not count any more.
    """
    for arrival in arrivals:
        tokens.learn(arrival.prompt(arrival.ticket.skeleton.native_order))
    dispatcher = Dispatcher(
        make_scheduler(policy, options), make_placement(placement, placement_options or {}), epoch
    )
    cluster = RealCluster(dispatcher, engines, tokens, gaps=gaps, run_name=run_name, stream=stream)
    for started in engines.values():
        await flushed(started)
    before = [await started.engine.load() for started in engines.values()]
    began_s = time.monotonic()
    await cluster.run(arrivals)
    wall_s = time.monotonic() - began_s
    await asyncio.sleep(SETTLE_S)
    dispatcher.check_integrity()
    after = [await started.engine.load() for started in engines.values()]
    loads = list(zip(before, after, strict=True))
    return RealRun(
        tuple(cluster.rows[a.ticket.request_id] for a in arrivals),
        tuple(cluster.submissions),
        sum(b.evicted_tokens_total - a.evicted_tokens_total for a, b in loads),
        _by_class(loads),
        wall_s,
        began_s,
        sum(int(b.extra.get(_IGNORED, 0) - a.extra.get(_IGNORED, 0)) for a, b in loads),
        tuple(cluster.report_delays_s),
    )


def _by_class(loads: Sequence[tuple[EngineLoad, EngineLoad]]) -> dict[str, int]:
    """What was evicted between the two loads of each engine, by class; those of no engine: empty."""
    evicted: Counter[str] = Counter()
    for before, after in loads:
        for name, count in after.extra.items():
            if name.startswith(_EVICTED):
                evicted[name.removeprefix(_EVICTED)] += int(count - before.extra.get(name, 0))
    return dict(evicted)
