"""Placements on real engines: hit rate and TTFT of two SGLang replicas, placement by placement.

One pair of engines (CPU, random weights) serves all arms in turns, their caches flushed before every
run; trace, scheduling policy and retention are the same for every arm. There is no Ray and no HTTP: the
product's dispatcher drives the engines. ``--simulated`` is the same in virtual time, and says so.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from loadgen.bench.cluster_settings import ARMS, DEFAULT_ARMS, SETTINGS
from loadgen.bench.cluster_simulated import simulated_row
from loadgen.bench.retention_settings import Arm, Setting
from loadgen.bounds import bounds_in_words
from loadgen.intervals import mean_interval
from loadgen.metrics import spread
from loadgen.real.bounds import placed_bounds
from loadgen.real.cluster import StartedEngine
from loadgen.real.engines import random_model, running, token_ids_for
from loadgen.real.session import RealRun, run_placed
from loadgen.traces.data import DataMissing
from prism_ray.engine.profile import load_profile

POLICY = "qas"
RETENTION = "dart"
REFERENCE = "round-robin"
SEEDS = (0, 1, 2)
SHAPE = "19m"
REPLICAS = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one arm; ``machine_load``: what ran or wanted to on this machine, last minute's mean."""

    setting: Setting
    arm: str
    seed: int
    pool_tokens: int
    run: RealRun
    machine_load: float

    @property
    def ttft_p99_s(self) -> float:
        return float(spread(self.run.ttfts_s)["p99"])

    def row(self) -> dict[str, Any]:
        """JSON-ready: the arm's options and what came of it."""
        rows = self.run.rows
        finished = [r.finished_s - r.arrival_s for r in rows if r.finished_s is not None]
        return {
            "setting": self.setting.name,
            "arm": self.arm,
            "placement": ARMS[self.arm].placement,
            "placement_options": dict(ARMS[self.arm].options),
            "policy": POLICY,
            "retention": RETENTION,
            "seed": self.seed,
            "replicas": REPLICAS,
            "rate": self.setting.rate,
            "pool_tokens": self.pool_tokens,
            "requests": len(rows),
            "hit_rate": self.run.hit_rate,
            "bounds": placed_bounds(self.run, self.pool_tokens, REPLICAS),
            "ttft_s": spread(self.run.ttfts_s),
            "latency_s": spread(finished),
            "requests_by_replica": dict(sorted(Counter(r.replica for r in rows).items())),
            "uncached_tokens_by_replica": _uncached(self.run),
            "evicted_tokens": self.run.evicted_tokens,
            "lateness_max_s": max(r.lateness_s for r in rows),
            "wall_s": self.run.wall_s,
            "machine_load": self.machine_load,
        }


def _uncached(run: RealRun) -> dict[str, int]:
    computed: Counter[str] = Counter()
    for row in run.rows:
        computed[row.replica] += row.prompt_tokens - (row.cached_tokens or 0)
    return dict(sorted(computed.items()))


async def measure(
    setting: Setting,
    arms: Sequence[str],
    seeds: Sequence[int],
    model: Path,
    told: Callable[[Run], None],
    there: Collection[tuple[str, int]] = (),
) -> None:
    """All arms, seed by seed, on one pair of engines, but for those ``there`` already.

    The first arm of a seed is another one for each seed. ``told`` hears of each run.
    """
    pool_tokens = setting.pool_tokens(seeds)
    spec = setting.engine(model, pool_tokens, Arm(RETENTION))
    turns = [
        (seed, [arm for arm in _turned(arms, turn) if (arm, seed) not in there])
        for turn, seed in enumerate(seeds)
    ]
    if not any(missing for _, missing in turns):
        return
    async with AsyncExitStack() as stack:
        engines: dict[str, StartedEngine] = {}
        for number in range(REPLICAS):  # one after the other: together they take minutes
            engines[f"replica-{number}"] = await stack.enter_async_context(running(spec))
        for seed, missing in turns:
            tokens = token_ids_for(model)  # another seed's prompts have pieces of the same names
            for arm in missing:
                name = f"{setting.name}/{arm}/{seed}"
                run = await run_placed(
                    engines,
                    setting.arrivals(seed),
                    tokens,
                    policy=POLICY,
                    placement=ARMS[arm].placement,
                    placement_options=ARMS[arm].options,
                    epoch=name,
                    run_name=name,
                )
                told(Run(setting, arm, seed, pool_tokens, run, os.getloadavg()[0]))


def _turned(arms: Sequence[str], by: int) -> list[str]:
    by %= len(arms)
    return [*arms[by:], *arms[:by]]


def _line(run: Run) -> str:
    ttft = spread(run.run.ttfts_s)
    row = run.row()
    shares, bounds = row["requests_by_replica"], bounds_in_words(row["bounds"])
    return (
        f"{run.setting.name:<10}{run.arm:<16}seed {run.seed}  hit {run.run.hit_rate:6.1%}"
        f"{f' ({bounds})' if bounds else ''}"
        f"  TTFT mean {ttft['mean']:.3f} s  p99 {ttft['p99']:.3f} s"
        f"  requests {'/'.join(map(str, shares.values()))}  {run.run.wall_s:.1f} s"
        f"  load {run.machine_load:.1f}"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over seeds; against round-robin, seed by seed: points of hit rate, and ratios of P99 TTFT.

    A ratio's interval is that of the mean of its logarithms. Bounds on the hit rate stand last.
    """
    reference = {r["seed"]: r for r in rows if r["arm"] == REFERENCE}
    lines = [
        f"{'arm':<16}{'hit rate':>9}{'− round-robin, points':>24}{'mean TTFT, s':>14}"
        f"{'P99 TTFT, s':>13}{'P99 / round-robin (95%)':>26}  bounds"
    ]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        pairs = [(row, reference[row["seed"]]) for row in own if row["seed"] in reference]
        points, ratio = "", ""
        if arm != REFERENCE and pairs:
            mean, half = mean_interval([100 * (a["hit_rate"] - b["hit_rate"]) for a, b in pairs])
            points = f"{mean:+.2f} ± {half:.2f}"
            logs = [log(a["ttft_s"]["p99"] / b["ttft_s"]["p99"]) for a, b in pairs]
            mean, half = mean_interval(logs)
            low, high = (exp(min(mean + s * half, 700.0)) for s in (-1, 1))
            ratio = f"{exp(mean):.2f} ({low:.2f} to {high:.2f})"
        hit, ttft, p99 = (
            fmean(values)
            for values in zip(
                *((r["hit_rate"], r["ttft_s"]["mean"], r["ttft_s"]["p99"]) for r in own),
                strict=True,
            )
        )
        lines.append(
            f"{arm:<16}{hit:>9.2%}{points:>24}{ttft:>14.3f}{p99:>13.3f}{ratio:>26}  "
            f"{bounds_in_words(_mean_bounds(own))}".rstrip()
        )
    return "\n".join(lines)


def _mean_bounds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Means over seeds of the bounds that every row has; rows of earlier versions have none."""
    bounds = [row.get("bounds", {}) for row in rows]
    return {
        name: fmean(each[name] for each in bounds)
        for name in bounds[0]
        if all(each.get(name) is not None for each in bounds)
    }


@click.command("cluster")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Write the rows here, after every run; what is there of the same setting is not run again.",
)
@click.option("--setting", "name", type=click.Choice(sorted(SETTINGS)), default="documents")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests/s.")
@click.option("--arm", "arms", multiple=True, type=click.Choice(sorted(ARMS)), help="Only these.")
@click.option("--seed", "seeds", type=int, multiple=True, default=SEEDS, show_default=True)
@click.option(
    "--simulated",
    type=(float, float),
    metavar="STEP_S TOKEN_S",
    help="In virtual time instead: seconds of a step, and of a computed token.",
)
def cluster(
    json_path: Path | None,
    name: str,
    rate: float | None,
    arms: tuple[str, ...],
    seeds: tuple[int, ...],
    simulated: tuple[float, float] | None,
) -> None:
    """Compare placements over two real SGLang engines (CPU, 19M parameters)."""
    setting = SETTINGS[name]
    if rate is not None:
        setting = replace(setting, rate=rate)
    try:
        setting.arrivals(seeds[0])
    except DataMissing as error:
        raise click.ClickException(str(error)) from None
    if simulated is not None:
        _simulate(setting, arms or DEFAULT_ARMS, seeds, *simulated)
        return
    rows = _kept(json_path, setting, seeds)
    there = {(row["arm"], row["seed"]) for row in rows}

    def keep(run: Run) -> None:
        click.echo(_line(run), err=True)
        rows.append(run.row())
        if json_path is not None:
            json_path.write_text(json.dumps(rows, indent=2) + "\n")

    asyncio.run(measure(setting, arms or DEFAULT_ARMS, seeds, random_model(SHAPE), keep, there))
    click.echo(table(rows))


def _simulate(
    setting: Setting, arms: Sequence[str], seeds: Sequence[int], step_s: float, token_s: float
) -> None:
    pool_tokens = setting.pool_tokens(seeds)
    profile = load_profile("zero")
    cost = replace(profile.cost, base_s=step_s, new_token_s=token_s)
    rows = [
        simulated_row(setting, arm, seed, pool_tokens, POLICY, REPLICAS, cost, profile.params())
        for seed in seeds
        for arm in arms
    ]
    click.echo(
        f"simulated: {step_s:g} s a step, {token_s:g} s a token; {setting.rate:g} requests/s"
    )
    click.echo(table(rows))


def _kept(path: Path | None, setting: Setting, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of an earlier call. ClickException if they are of anything else."""
    if path is None or not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    asked = (setting.name, setting.rate, setting.requests, setting.pool_tokens(seeds))
    for row in rows:
        if (row["setting"], row["rate"], row["requests"], row["pool_tokens"]) != asked:
            raise click.ClickException(f"{path} has runs of another setting, rate or seeds")
    return rows


if __name__ == "__main__":
    cluster()
