"""`prism-loadgen measure`: the same requests at several loads, and a report of what came of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from loadgen.arrivals import ARRIVALS
from loadgen.checkout import git_commit
from loadgen.client import served_models
from loadgen.metrics import summarize
from loadgen.report.page import write_report
from loadgen.report.points import Load, differing, loads, read_points
from loadgen.rows import PlannedRequest, RunRecord, hash_arrivals, hash_prompts
from loadgen.run import fire_record, flush_or_fail, jsonable, target_options, warn_if_late
from loadgen.slo import Slo
from loadgen.sources import (
    OWN_TIMES,
    Source,
    Wording,
    at_once,
    load_source,
    schedule,
    source_bounds,
    source_options,
    with_model,
)
from loadgen.workers import Target, processes_for


@dataclass(frozen=True)
class Plan:
    """One run to be made: its load (one of the two) and the seed of its arrivals."""

    rate: float | None
    concurrency: int | None
    seed: int

    @property
    def label(self) -> str:
        load = f"rate{self.rate:g}" if self.rate is not None else f"clients{self.concurrency}"
        return f"{load}-seed{self.seed}"


@click.command()
@click.argument("source")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True)
@target_options
@source_options
@click.option(
    "--rate", "rates", type=click.FloatRange(0, min_open=True), multiple=True, help="Requests/s."
)
@click.option(
    "--concurrency", "clients", type=click.IntRange(1), multiple=True, help="Closed loop."
)
@click.option(
    "--arrivals",
    type=click.Choice([OWN_TIMES, *ARRIVALS]),
    default="poisson",
    show_default=True,
    help="Of an open loop.",
)
@click.option("--requests", type=click.IntRange(2), default=200, show_default=True, help="A run.")
@click.option("--warm-up", type=click.FloatRange(0, 0.9), default=0.2, show_default=True,
              help="Share of the requests, sent first, that do not count.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Of arrivals.")
@click.option("--flush/--no-flush", default=True, help="POST /flush_cache before each run.")
@click.option("--pool-tokens", type=click.IntRange(1), help="The server's, for a tighter bound.")
def measure(
    source: str,
    out: Path,
    base_url: str,
    api_key: str | None,
    timeout_s: float,
    processes: int | None,
    slo: Slo | None,
    trace_seed: int,
    pairs: tuple[str, ...],
    rates: tuple[float, ...],
    clients: tuple[int, ...],
    arrivals: str,
    requests: int,
    warm_up: float,
    seeds: int,
    flush: bool,
    pool_tokens: int | None,
    **words: Any,
) -> None:
    """Send the first requests of SOURCE at each --rate (or with each --concurrency), every run from an
    empty cache, and write runs and report to --out.

    Give --rate and --concurrency as often as there are loads. A measurement that was stopped goes on
    where it was; runs that asked something else are not overwritten. Loads at which requests under
    way and TTFT grow for as long as requests arrive are marked as saturated and left out of means.
    """
    if bool(rates) == bool(clients):
        raise click.UsageError("give --rate or --concurrency, one of them as often as needed")
    loaded = load_source(source, requests, Wording(**words), seed=trace_seed, pairs=pairs)
    loaded = with_model(loaded, asyncio.run(served_models(base_url, api_key=api_key)))
    if len(loaded.requests) < 2:
        raise click.ClickException(f"{source} has {len(loaded.requests)} requests: too few")
    out.mkdir(parents=True, exist_ok=True)
    options = click.get_current_context().params
    config = {
        k: jsonable(v) for k, v in options.items() if k not in ("api_key", "rates", "clients")
    }
    config |= {
        "source": loaded.name,
        "notes": loaded.notes,
        "commit": git_commit(),
        "warm_up_requests": int(warm_up * len(loaded.requests)),
        "machine_load_before": os.getloadavg()[0],
    }
    _check_told_same(out, config)
    for plan in _plans(rates, clients, seeds):
        file = out / f"{plan.label}.run.json"
        planned = _planned(loaded, plan, arrivals)
        if file.exists():
            _check_same(file, planned)
            continue
        if flush:
            flush_or_fail(base_url, api_key)
        record = fire_record(
            planned,
            Target(base_url, api_key, timeout_s),
            config={
                **config,
                "rate": plan.rate,
                "concurrency": plan.concurrency,
                "seed": plan.seed,
            },
            concurrency=plan.concurrency,
            processes=processes or processes_for(plan.rate),
            label=plan.label,
        )
        warn_if_late(summarize(record.rows), record)
        bounds = source_bounds(loaded, record, pool_tokens)
        replace(record, config={**record.config, "bounds": bounds}).write(file)
    points = read_points(out, slo)
    for load in loads(points):
        click.echo(_line(load))
    click.echo(f"wrote {write_report(points, out)}")


def _plans(rates: Sequence[float], clients: Sequence[int], seeds: int) -> Iterator[Plan]:
    """Seeds outermost: a measurement that is stopped has seen every load once."""
    for seed in range(seeds):
        for rate in sorted(set(rates)):
            yield Plan(rate, None, seed)
        for many in sorted(set(clients)):
            yield Plan(None, many, seed)


def _planned(source: Source, plan: Plan, arrivals: str) -> list[PlannedRequest]:
    if plan.rate is None:
        return at_once(source.requests)
    try:
        return schedule(source.requests, arrivals, plan.rate, plan.seed)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _check_told_same(out: Path, config: Mapping[str, Any]) -> None:
    """ClickException if the directory has runs of another server, warm-up, SLO, …"""
    for file in sorted(out.glob("*.run.json")):
        other = differing(config, RunRecord.read(file).config)
        if other:
            hint = (
                "; another SLO for the same runs: prism-loadgen report --slo"
                if "slo" in other
                else ""
            )
            raise click.ClickException(
                f"{file} was told another {', '.join(other)}: choose another directory{hint}"
            )


def _check_same(file: Path, planned: Sequence[PlannedRequest]) -> None:
    kept = RunRecord.read(file)
    if (kept.prompts_sha256, kept.arrivals_sha256) != (
        hash_prompts(planned),
        hash_arrivals(planned),
    ):
        raise click.ClickException(
            f"{file} asked something else: choose another directory, or delete the file"
        )


def _line(load: Load) -> str:
    if load.means is None:
        return f"{load.label}: saturated ({load.reason})"
    untold = "" if load.told else f" saturation not told ({load.reason}),"
    shown = [f"{load.label}:{untold}"]
    for name, word in (("ttft_p50_s", "TTFT P50"), ("ttft_p99_s", "P99"), ("tpot_mean_s", "TPOT")):
        if name in load.means:
            shown.append(f"{word} {1000 * load.means[name][0]:.1f} ms")
    if "hit_rate" in load.means:
        shown.append(f"hit rate {load.means['hit_rate'][0]:.1%}")
    if "goodput_per_s" in load.means:
        shown.append(f"goodput {load.means['goodput_per_s'][0]:.2f}/s")
    return " ".join(shown)
