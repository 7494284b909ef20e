"""`prism-loadgen profile`: what a real engine's steps cost, measured and written as a profile file."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import click
import numpy as np

from loadgen.real.cluster import RealArrival, RealCluster, StartedEngine
from loadgen.real.engines import running_engine, token_ids_for
from loadgen.real.fit import Fit, Residuals, Step, fit_steps, held_out_residuals, steps_taken
from loadgen.real.session import SETTLE_S
from loadgen.real.steps_file import StepsFile, steps_file
from loadgen.real.token_ids import AtomTokens
from prism_ray.dispatch import Dispatcher
from prism_ray.engine.base import EngineInfo
from prism_ray.engine.profile import Profile
from prism_ray.engine.sglang_steps import StepRecord
from prism_ray.model import Skeleton, Ticket
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler

PROMPT_SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Prompt lengths, as shares of a chunk: the fit needs small batches and full ones."""
CONCURRENCY = (1, 2, 4, 8, 16)
ROUNDS = 3
WARM_UP_PART = 10
"""The first tenth of the steps is left out: the first batches of every shape pay for warming up."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A fitted engine: its limits, its cost and how well the cost tells its steps.

    ``residuals`` by kind of step are those of steps that a cost was not fitted to; ``steps`` are all
    that were used.
    """

    info: EngineInfo
    fit: Fit
    residuals: Mapping[str, Residuals] = field(default_factory=dict)
    steps: tuple[Step, ...] = field(default=(), repr=False)


def calibration_groups(
    info: EngineInfo, output_tokens: int, rounds: int = ROUNDS
) -> list[list[RealArrival]]:
    """Groups of equal private prompts that come together; nothing is shared, all in a drawn order.

    Every length at every concurrency of which the pool holds two, ``rounds`` times.
    """
    chunk = info.chunked_prefill_tokens or info.max_prefill_tokens
    shapes = [
        (max(1, round(share * chunk)), size)
        for _ in range(rounds)
        for share in PROMPT_SHARES
        for size in CONCURRENCY
        if size <= info.max_running
        and size * (share * chunk + output_tokens) < info.pool_tokens / 2
    ]
    numbers = count()
    order = np.random.default_rng(0).permutation(len(shapes))
    return [
        [_arrival(next(numbers), tokens, output_tokens) for _ in range(size)]
        for tokens, size in (shapes[index] for index in order)
    ]


def _arrival(number: int, tokens: int, output_tokens: int) -> RealArrival:
    skeleton = Skeleton(None, (), (), tokens)
    ticket = Ticket(f"calibration-{number}", skeleton, 0.0, max_new_tokens=output_tokens)
    return RealArrival(ticket, output_tokens)


async def measure(
    model: str,
    server_args: dict[str, Any],
    *,
    cpu: bool,
    output_tokens: int,
    rounds: int = ROUNDS,
) -> Measured:
    """Start an engine, load it with calibration prompts, fit its recorded steps."""
    with steps_file() as file:
        async with running_engine(model, server_args, file.environment, cpu=cpu) as engine:
            tokens = token_ids_for(Path(model))
            return await calibrate(engine, file, tokens, output_tokens, rounds)


async def calibrate(
    engine: StartedEngine,
    file: StepsFile,
    tokens: AtomTokens,
    output_tokens: int,
    rounds: int = ROUNDS,
) -> Measured:
    """Measure a running engine that records its steps in ``file``; it must have nothing else to do.

    A group comes when the one before is answered: a slow engine would put groups together, and then
    all its batches are full and tell nothing of what a small one costs.
    """
    file.take()
    for number, group in enumerate(calibration_groups(engine.info, output_tokens, rounds)):
        for arrival in group:
            tokens.learn(arrival.prompt(()))
        dispatcher = Dispatcher(make_scheduler("fcfs"), make_placement("single"), "calibration")
        name = f"calibration {number}"
        await RealCluster(dispatcher, {"replica": engine}, tokens, run_name=name).run(group)
    await asyncio.sleep(SETTLE_S)
    taken = steps_taken([record for record in file.take() if isinstance(record, StepRecord)])
    steps = taken[len(taken) // WARM_UP_PART :]
    return Measured(engine.info, fit_steps(steps), held_out_residuals(steps), tuple(steps))


def as_profile(name: str, device: str, measured: Measured) -> Profile:
    """The profile file's content."""
    info, fit = measured.info, measured.fit
    return Profile(
        name,
        fit.cost,
        {
            "pool_tokens": info.pool_tokens,
            "context_length": info.context_length,
            "max_running": info.max_running,
            "chunked_prefill_tokens": info.chunked_prefill_tokens,
            "max_prefill_tokens": info.max_prefill_tokens,
            "page_size": info.page_size,
        },
        f"Measured on {device} with {Path(info.model).name}: least squares over {fit.steps} steps, "
        f"R² {fit.explained:.3f}, sum of durations off by {fit.total_error:+.1%}."
        + "".join(map(_residuals_in_words, measured.residuals.items())),
    )


def _residuals_in_words(item: tuple[str, Residuals]) -> str:
    kind, found = item
    return (
        f" {found.steps} {kind} steps that the fit had not seen: off by {found.median:.1%} (median) "
        f"and {found.p90:.1%} (P90) each, their sum by {found.total:+.1%}."
    )


@click.command("profile")
@click.option("--model", required=True, help="Model directory (or what SGLang takes for one).")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Profile file to write."
)
@click.option("--name", default=None, help="Name of the profile; the file's stem by default.")
@click.option("--device", default="cpu", show_default=True, help="cpu, or the GPU's name.")
@click.option("--pool", type=click.IntRange(1), help="KV pool in tokens (required on a CPU).")
@click.option("--chunk", type=click.IntRange(1), help="chunked_prefill_size.")
@click.option(
    "--steps", "steps_out", type=click.Path(path_type=Path), help="Write the steps here, as CSV."
)
@click.option("--output-tokens", type=click.IntRange(2), default=16, show_default=True)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=ROUNDS,
    show_default=True,
    help="How often each group of prompts is sent; fewer for a slow engine.",
)
@click.option(
    "--server-arg", "extra", multiple=True, help="More SGLang ServerArgs: name=JSON value."
)
def profile(
    model: str,
    out: Path,
    name: str | None,
    device: str,
    pool: int | None,
    chunk: int | None,
    steps_out: Path | None,
    output_tokens: int,
    rounds: int,
    extra: tuple[str, ...],
) -> None:
    """Measure a real engine's step costs and write a profile for `simulate --profile`."""
    cpu = device == "cpu"
    if cpu and pool is None:
        raise click.BadParameter("an engine on a CPU needs its pool's size", param_hint="--pool")
    arguments = {"log_level": "error", **dict(map(_argument, extra))}
    arguments |= {"max_total_tokens": pool} if pool else {}
    arguments |= {"chunked_prefill_size": chunk} if chunk else {}
    measured = asyncio.run(
        measure(
            model,
            arguments,
            cpu=cpu,
            output_tokens=output_tokens,
            rounds=rounds,
        )
    )
    made = as_profile(name or out.stem, device, measured)
    out.write_text(json.dumps(made.to_json(), indent=2) + "\n")
    if steps_out is not None:
        write_steps(steps_out, measured.steps)
    click.echo(made.source)
    click.echo(json.dumps(made.to_json()["cost"]))


def write_steps(file: Path, steps: Iterable[Step]) -> None:
    """One line a step: what it held, and its seconds."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(Step._fields)
        writer.writerows((int(step.prefill), *step[1:]) for step in steps)


def _argument(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not name=value", param_hint="--server-arg")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


if __name__ == "__main__":
    profile()
