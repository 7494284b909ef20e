"""`prism-loadgen compare`: SGLang's policies and ours side by side on a real engine, on this machine."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from loadgen.client import FlushFailed
from loadgen.compare.arms import ARMS, CONTEXTPILOT, CONTROL, DEFAULT, EVERY, QUICK, Arm, arms_of
from loadgen.compare.calibration import find_knee, fitted_profile, recorded, where_time_goes
from loadgen.compare.machine import CPU_19M, Machine, machine
from loadgen.compare.native import ServerFailed
from loadgen.compare.page import INDEX, answers_table, table, write_page
from loadgen.compare.prediction import hit_bound, predict
from loadgen.compare.runs import ComparisonMismatch, RunDirectory, Step, steps
from loadgen.compare.session import Lab
from loadgen.compare.tables import tabulate
from loadgen.compare.verdicts import verdicts
from loadgen.compare.workload import Workload
from loadgen.trace_cmd import parse_options
from prism_ray.engine.base import EngineDied

LOADS = (0.9, 1.2)
SEEDS = 5
QUICK_SEEDS = 3
QUICK_REQUESTS = 100
QUICK_BUDGET_S = 1500.0
"""The last run, the page and what is predicted come on top: half an hour in all."""
PROFILE = "profile.json"
KNEE = "knee.json"
WHERE = "where.json"
CALLS = "calls.json"
SETTING = "setting.json"


@dataclass(frozen=True)
class Plan:
    """What is to be run, and where it goes. ``until_s``: the clock's time after which no run begins."""

    machine: Machine
    workload: Workload
    directory: RunDirectory
    arms: Sequence[Arm]
    knee_arms: Sequence[Arm]
    loads: Sequence[float]
    seeds: Sequence[int]
    room: int | None
    until_s: float
    replicas: int = 1
    contextpilot_python: str = sys.executable

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until_s


@click.command("compare")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default="comparison")
@click.option(
    "--quick",
    is_flag=True,
    help="Fewer arms, seeds and requests, and a budget: half an hour on 2 cores.",
)
@click.option(
    "--engine",
    "source",
    default=CPU_19M,
    show_default=True,
    help="cpu-19m, cpu-smollm2, or a config of the product (preset or file), as on a GPU host.",
)
@click.option(
    "--profile", "profile_name", help="Of the simulator.  [default: fitted to the engine]"
)
@click.option("--trace", help="Name of a trace.  [default: multihop-rag; on a GPU zipf_hotspot]")
@click.option("-o", "--option", "pairs", multiple=True, metavar="NAME=VALUE", help="Of the trace.")
@click.option("--requests", type=click.IntRange(2), help="In a run.")
@click.option("--pool-share", type=click.FloatRange(0, 1, min_open=True), help="Of unique tokens.")
@click.option("--arm", "names", multiple=True, type=click.Choice(list(EVERY)), help="Only these.")
@click.option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Engines of an arm; natively behind a router (pip install sglang-router smg).",
)
@click.option("--load", "loads", type=float, multiple=True, default=LOADS, show_default=True)
@click.option("--seeds", type=click.IntRange(1), help="How many.  [default: 5; quick: 3]")
@click.option("--knee", "knee_qps", type=float, help="Requests/s.  [default: searched for]")
@click.option(
    "--room", type=click.IntRange(1), help="Engines up at once.  [default: as memory has]"
)
@click.option(
    "--budget-s",
    type=float,
    help="Begin no run after so long; the next call goes on.  [quick: 1500]",
)
@click.option(
    "--contextpilot",
    "contextpilot_python",
    type=click.Path(exists=True, dir_okay=False),
    help="Python that has the package contextpilot: adds its own reordering as an arm.",
)
@click.option("--report-only", is_flag=True, help="Write the page of the runs that are there.")
def compare(
    out: Path,
    quick: bool,
    source: str,
    profile_name: str | None,
    trace: str | None,
    pairs: tuple[str, ...],
    requests: int | None,
    pool_share: float | None,
    names: tuple[str, ...],
    replicas: int,
    loads: tuple[float, ...],
    seeds: int | None,
    knee_qps: float | None,
    room: int | None,
    budget_s: float | None,
    contextpilot_python: str | None,
    report_only: bool,
) -> None:
    """Compare SGLang's own scheduling policies with ours on real engines.

    The same prompts, arrivals and pool for all; one JSON a run in DIR/runs. A comparison that was
    stopped is taken up where it was: give the same options again.
    """
    began_s = time.monotonic()
    if budget_s is None:
        budget_s = QUICK_BUDGET_S if quick else float("inf")
    with _plainly():
        directory = RunDirectory(out)
        if not report_only:
            host = machine(source)
            if profile_name is not None:
                host = replace(host, profile=profile_name)
            if pool_share is not None:
                host = replace(host, pool_by_workload=True)
            workload = _workload(host.workload, trace, pairs, requests, pool_share, quick)
            several = replicas > 1
            chosen = arms_of(names or (QUICK if quick and not several else ()), replicas)
            if contextpilot_python and not several and CONTEXTPILOT not in chosen:
                chosen.append(CONTEXTPILOT)
            plan = Plan(
                host,
                workload,
                directory,
                chosen,
                _knee_arms(chosen, quick),
                sorted(loads),
                range(seeds or (QUICK_SEEDS if quick else SEEDS)),
                room,
                began_s + budget_s,
                replicas,
                contextpilot_python or sys.executable,
            )
            left = measure(plan, knee_qps)
            note_call(directory, time.monotonic() - began_s, left)
        finish(directory)


def _workload(
    default: Workload,
    trace: str | None,
    pairs: tuple[str, ...],
    requests: int | None,
    pool_share: float | None,
    quick: bool,
) -> Workload:
    workload = default
    if trace is not None:
        workload = replace(workload, trace=trace, options=parse_options(pairs))
    elif pairs:
        workload = replace(workload, options={**workload.options, **parse_options(pairs)})
    if requests or quick:
        workload = replace(workload, requests=requests or min(workload.requests, QUICK_REQUESTS))
    return workload if pool_share is None else replace(workload, pool_share=pool_share)


def _knee_arms(chosen: Sequence[Arm], quick: bool) -> Sequence[Arm]:
    native = [arm for arm in chosen if arm.native and not arm.reorders] or list(chosen)
    return native[:1] if quick else [arm for arm in native if arm.refresh]


def measure(plan: Plan, knee_qps: float | None = None) -> int:
    """Everything that is not in the directory yet, until the plan is over; how many runs are left."""
    directory = plan.directory
    setting = {
        "machine": plan.machine.to_json(),
        "workload": plan.workload.to_json(),
        "replicas": plan.replicas,
    }
    directory.share(SETTING, setting)
    plan.workload.made(0)  # its data is missing now or never
    python = plan.contextpilot_python
    with Lab(plan.machine, plan.workload, plan.room, plan.replicas, python) as lab:
        knee = _knee(plan, lab, knee_qps)
        todo = list(steps(plan.arms, plan.loads, plan.seeds, knee))
        missing = [step for step in todo if not directory.has(step)]
        left = 0
        for number, step in enumerate(missing, len(todo) - len(missing) + 1):
            if plan.over:
                left = len(todo) - number + 1
                break
            result = lab.run(step)
            directory.keep(step, result)
            click.echo(f"{number}/{len(todo)} {_line(step, result)}", err=True)
    _profile(plan, knee)
    _where(plan, knee)
    _predict(plan)
    return left


def note_call(directory: RunDirectory, elapsed_s: float, left: int) -> None:
    """Keep and print how long this call measured, and how many runs are left for another one."""
    calls = (directory.read(CALLS) or {"calls": []})["calls"]
    directory.write(CALLS, {"calls": [*calls, {"elapsed_s": round(elapsed_s), "runs_left": left}]})
    rest = f"; {left} runs are left for another call" if left else ""
    click.echo(f"measured for {elapsed_s / 60:.1f} minutes{rest}", err=True)


def _knee(plan: Plan, lab: Lab, knee_qps: float | None) -> float:
    directory = plan.directory
    if knee_qps is not None:
        directory.share(KNEE, {"qps": knee_qps, "arm": "given", "tried": []})
    elif directory.read(KNEE) is None:
        found = find_knee(lab, plan.knee_arms, lambda text: click.echo(text, err=True))
        directory.write(KNEE, found)
    return float((directory.read(KNEE) or {})["qps"])


def _profile(plan: Plan, qps: float) -> None:
    """Fit the simulator to this engine, and say where its time goes under fcfs and under our policy."""
    directory, machine = plan.directory, plan.machine
    if machine.profile is None and directory.read(PROFILE) is None and not plan.over:
        control = ARMS[CONTROL]
        made = asyncio.run(recorded(machine, plan.workload, control, qps))
        profile = fitted_profile(machine, made)
        directory.write(PROFILE, profile.to_json())
        click.echo(profile.source, err=True)
        directory.write(WHERE, {control.name: where_time_goes(made)})


def _where(plan: Plan, qps: float) -> None:
    told = plan.directory.read(WHERE)
    if told is not None and DEFAULT not in told and not plan.over:
        made = asyncio.run(recorded(plan.machine, plan.workload, ARMS[DEFAULT], qps))
        plan.directory.write(WHERE, {**told, DEFAULT: where_time_goes(made)})


def _predict(plan: Plan) -> None:
    """Put the bound and the simulator's word into every run that does not have them."""
    directory = plan.directory
    kept = directory.path / PROFILE
    profile = plan.machine.profile or (str(kept) if kept.exists() else None)
    for step in steps(
        plan.arms, plan.loads, plan.seeds, float((directory.read(KNEE) or {})["qps"])
    ):
        if not directory.has(step):
            continue
        result = directory.result(step)
        told: dict[str, Any] = {}
        if result.get("hit_bound") is None:
            told["hit_bound"] = hit_bound(result, plan.workload)
        if result.get("predicted") is None and profile is not None:
            told["predicted"] = predict(result, plan.workload, profile)
        if told:
            directory.keep(step, {**result, **told})


def _line(step: Step, result: dict[str, Any]) -> str:
    ttft, load = result["ttft_s"], result["machine_load"]
    return (
        f"{step.arm.name:<22} load {step.load:g} seed {step.seed}  hit {result['hit_rate']:6.1%}  "
        f"TTFT mean {ttft['mean']:.3f} p99 {ttft['p99']:.3f} s  {result['span_s']:.0f} s  "
        f"others {load['others_cores']:.2f} cores"
    )


def finish(directory: RunDirectory) -> None:
    """Page, summary and plots of what is there; the table for people."""
    notes = directory.path / "notes.md"
    write_page(directory, notes.read_text(encoding="utf-8") if notes.exists() else "")
    results = directory.runs()
    click.echo(table(tabulate(results, list(EVERY))))
    click.echo(answers_table(verdicts(results)))
    click.echo(f"written: {directory.path / INDEX}")


@contextmanager
def _plainly() -> Iterator[None]:
    """What a user can do something about, as one line."""
    try:
        yield
    except (ComparisonMismatch, ServerFailed, EngineDied, FlushFailed, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except (RuntimeError, json.JSONDecodeError) as error:
        raise click.ClickException(f"the comparison stopped: {error}") from error


if __name__ == "__main__":
    compare()
