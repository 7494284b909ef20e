"""`prism-loadgen validate`: the real engine and the simulator side by side, one command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click

from loadgen.checkout import git_commit
from loadgen.metrics import percentile
from loadgen.real.cluster import RealArrival
from loadgen.real.engines import EngineSpec, random_model, running, token_ids_for
from loadgen.real.fit import Fit, fit_cost
from loadgen.real.steps_file import steps_file
from loadgen.validate.agreement import (
    Arm,
    RankRow,
    ReplayedRow,
    SimulatedRow,
    as_json,
    rank_rows,
    replayed_row,
    simulated_row,
)
from loadgen.validate.kept import Compared, KeptArms, OtherValidation
from loadgen.validate.recording import Recording, record
from loadgen.validate.simulation import params_of, simulated_hit_rate
from loadgen.validate.trace import validation_arrivals
from loadgen.virtual import Delays
from prism_ray.engine.base import EngineInfo

POLICIES = ("fcfs", "lpm", "k-lpm", "qas")
RETENTIONS = ("lru", "dart")
SEEDS = (0, 1, 2)
REQUESTS = 240
RATE = 40.0
POOL_TOKENS = 8000
CHUNK_TOKENS = 1024
MAX_RUNNING = 48
FASTEST_PERCENT = 10


class _Recorded(NamedTuple):
    """What one arm gave: its runs, the engine, and what its steps cost."""

    info: EngineInfo
    recordings: list[Recording]
    fit: Fit
    delays: Delays


async def _record_engine(
    model: Path,
    retention: str,
    policies: Sequence[str],
    seeds: Sequence[int],
    requests: int,
    told: Callable[[_Recorded], None],
) -> None:
    """Run all policies on one engine; ``told`` hears of each when its seeds are done."""
    tokens = token_ids_for(model)
    spec = EngineSpec(model, POOL_TOKENS, CHUNK_TOKENS, MAX_RUNNING, retention=retention)
    with steps_file() as steps:
        async with running(spec, steps.environment) as engine:
            for policy in policies:
                recordings = await record(
                    engine,
                    steps,
                    tokens,
                    policy=policy,
                    retention=retention,
                    seeds=seeds,
                    count=requests,
                    rate=RATE,
                )
                told(_recorded(engine.info, recordings))


def _recorded(info: EngineInfo, recordings: list[Recording]) -> _Recorded:
    fit = fit_cost([step for recording in recordings for step in recording.steps])
    # A request waits for the step that runs; in virtual time it does so too, on top of the delay.
    plan_s = percentile([d for r in recordings for d in r.plan_delays_s], FASTEST_PERCENT)
    credit_s = median(d for recording in recordings for d in recording.run.report_delays_s)
    return _Recorded(info, recordings, fit, Delays(plan_s, credit_s))


def compare(recorded: _Recorded, requests: int) -> Compared:
    """(a) for all runs of one arm, and (b) for their mean."""
    replayed: list[ReplayedRow] = []
    rates: list[tuple[float, float]] = []
    for recording in recorded.recordings:
        params = params_of(recorded.info, recording.retention)
        epoch = f"{recording.policy}/{recording.retention}/{recording.seed}"
        replayed.append(replayed_row(recording, params, epoch))
        simulated = simulated_hit_rate(
            _handed_over(recording, validation_arrivals(recording.seed, requests, RATE)),
            policy=recording.policy,
            params=params,
            cost=recorded.fit.cost,
            delays=recorded.delays,
            tells_cache=recorded.info.tells_cache,
        )
        rates.append((recording.run.hit_rate, simulated))
    arm = replayed[0].policy, replayed[0].retention
    return Compared(tuple(replayed), simulated_row(arm, rates), _fit_json(recorded))


def _handed_over(recording: Recording, arrivals: Sequence[RealArrival]) -> list[RealArrival]:
    """The arrivals at the moments at which the real dispatcher got them, one after the other."""
    return [
        arrival._replace(ticket=replace(arrival.ticket, arrival_s=row.arrival_s + row.lateness_s))
        for arrival, row in zip(arrivals, recording.run.rows, strict=True)
    ]


class _Report:
    """What has been compared; kept and written anew after each arm, so that nothing of it is lost."""

    def __init__(self, about: dict[str, Any], path: Path | None, kept: KeptArms | None) -> None:
        self._path = path
        self._kept = kept
        self._about = about | {"fits": {}}
        self.replayed: list[ReplayedRow] = []
        self.simulated: list[SimulatedRow] = []

    def takes_up(self, arm: Arm) -> bool:
        """Whether an arm was compared before: then it is in the report now. Raises OtherValidation."""
        compared = None if self._kept is None else self._kept.get(arm)
        if compared is not None:
            self._add(compared)
        return compared is not None

    def add(self, compared: Compared) -> None:
        """An arm that was compared just now."""
        if self._kept is not None:
            self._kept.put(compared)
        self._add(compared)

    def _add(self, compared: Compared) -> None:
        self.replayed += compared.replayed
        self.simulated.append(compared.simulated)
        name = "/".join(compared.arm)
        self._about["fits"][name] = dict(compared.fit)
        click.echo(f"{name}: {len(compared.replayed)} runs", err=True)
        if self._path is not None:
            self._path.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def as_json(self) -> dict[str, Any]:
        return as_json(self.replayed, self.simulated, rank_rows(self.simulated), self._about)


@click.command("validate")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the report here.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep each arm here, and run only what is not here yet.",
)
@click.option("--policy", "policies", multiple=True, default=POLICIES, show_default=True)
@click.option("--retention", "retentions", multiple=True, default=RETENTIONS, show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, default=SEEDS, show_default=True)
@click.option("--requests", type=click.IntRange(20), default=REQUESTS, show_default=True)
@click.option("--shape", default="19m", show_default=True, help="Random model: tiny or 19m.")
def validate(
    json_path: Path | None,
    directory: Path | None,
    policies: tuple[str, ...],
    retentions: tuple[str, ...],
    seeds: tuple[int, ...],
    requests: int,
    shape: str,
) -> None:
    """Compare the simulator with a real SGLang engine on this CPU.

    (a) The model gets the real engine's batches: is each request's number of cached tokens the
    same? (b) The model has its own clock and a cost fitted to the engine: is the hit rate? Exits
    with 1 if anything that was asked does not hold. With --dir it can be stopped and taken up again.
    """
    model = random_model(shape)
    told = _told(model, requests, seeds)
    noted = {"git_commit": git_commit(), "sglang": version("sglang")}
    kept = None if directory is None else KeptArms(directory, told, noted)
    report = _Report(told | noted, json_path, kept)
    for retention in retentions:
        try:
            todo = [policy for policy in policies if not report.takes_up((policy, retention))]
        except OtherValidation as error:
            raise click.UsageError(str(error)) from None
        if todo:
            work = _record_engine(
                model, retention, todo, seeds, requests, lambda r: report.add(compare(r, requests))
            )
            asyncio.run(work)
    click.echo(table(report.replayed, report.simulated, rank_rows(report.simulated)))
    found = report.as_json()["verdicts"]
    for asked, holds in found.items():
        click.echo(f"{'yes' if holds else 'NO':<4}{asked.replace('_', ' ')}")
    if not all(found.values()):
        raise SystemExit(1)


def _told(model: Path, requests: int, seeds: Sequence[int]) -> dict[str, Any]:
    """What all arms of one report must have been told alike; JSON-ready."""
    return {
        "model": model.name,
        "requests": requests,
        "seeds": list(seeds),
        "rate": RATE,
        "pool_tokens": POOL_TOKENS,
        "chunk_tokens": CHUNK_TOKENS,
        "max_running": MAX_RUNNING,
    }


def _fit_json(recorded: _Recorded) -> dict[str, Any]:
    cost = recorded.fit.cost
    return {
        "cost": {name: getattr(cost, name) for name in cost.__slots__},
        "explained": recorded.fit.explained,
        "steps": recorded.fit.steps,
        "plan_delay_s": recorded.delays.plan_s,
        "credit_delay_s": recorded.delays.credit_s,
    }


def _replayed_line(r: ReplayedRow) -> str:
    bound = "" if r.b3 is None else f"{r.b3:.2%}"
    shared = r.crowded_batches / r.prefill_batches
    return (
        f"{r.policy:<10}{r.retention:<10}{r.seed:>5}{r.equal:>6} of {r.requests}{r.hit_rate:>8.2%}"
        f"{r.replayed_hit_rate:>8.2%}{bound:>8}{r.evicted_pools:>7.1f} x{shared:>8.0%}"
        f"{r.chunked:>9}{r.aborted:>9}{r.same_size_steps:>7} of {r.steps}"
    )


def table(
    replayed: Sequence[ReplayedRow], simulated: Sequence[SimulatedRow], ranks: Sequence[RankRow]
) -> str:
    """The report for people."""
    lines = [
        "(a) the real engine's batches, the model's cache",
        f"{'policy':<10}{'retention':<10}{'seed':>5}{'equal':>12}{'hit':>8}{'model':>8}{'B3':>8}"
        f"{'evicted':>9}{'shared':>8}{'chunked':>9}{'aborted':>9}{'same size':>14}",
    ]
    lines += map(_replayed_line, replayed)
    lines += [
        "",
        "(b) the simulator's own clock",
        f"{'policy':<10}{'retention':<10}{'real':>8}{'model':>8}{'points':>8}",
    ]
    lines += [
        f"{r.policy:<10}{r.retention:<10}{r.hit_rate:>8.2%}{r.simulated_hit_rate:>8.2%}"
        f"{r.difference_points:>+8.2f}"
        for r in simulated
    ]
    agreeing = sum(r.agrees for r in ranks)
    lines += ["", f"ranking: {len(ranks)} pairs differ for real, {agreeing} alike in the simulator"]
    lines += [
        f"  {'/'.join(r.first)} {r.real_points:+.2f} ± {r.interval_points:.2f} points from "
        f"{'/'.join(r.second)}, simulated {r.simulated_points:+.2f}"
        for r in ranks
        if not r.agrees
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    validate()
