"""The runs of a sweep, one file each, that can be stopped and taken up again. Compares nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from loadgen.simulate import SimSpec, report, run
from loadgen.sweep.arms import Arm


class SweepMismatch(ValueError):
    """The directory holds a run of the same name that was told something else."""


@dataclass(frozen=True)
class Step:
    """One run of a sweep. ``load`` is its rate as a share of the knee, None where rates are absolute."""

    arm: str
    spec: SimSpec
    load: float | None = None

    @property
    def file_name(self) -> str:
        """Readable, and unique by the arm's whole name."""
        words = re.sub(r"[^A-Za-z0-9.=-]+", "_", self.arm)[:48].strip("_")
        tag = blake2b(self.arm.encode(), digest_size=3).hexdigest()
        return f"{words}-{tag}.qps{self.spec.qps:.4g}.seed{self.spec.seed}.json"


def steps(
    base: SimSpec,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    *,
    knee_qps: float | None = None,
    loads: Sequence[float] = (),
    rates: Sequence[float] = (),
) -> Iterator[Step]:
    """All runs: arms innermost, so that a sweep that is stopped has compared something.

    ``loads`` are shares of ``knee_qps``, ``rates`` requests/s. ValueError for arms of one name, or
    loads without a knee.
    """
    if len({arm.name for arm in arms}) < len(arms):
        raise ValueError("two arms have the same name")
    if loads and knee_qps is None:
        raise ValueError("loads are shares of a knee, and there is none")
    points: list[tuple[float | None, float]] = [(x, x * (knee_qps or 0.0)) for x in loads]
    points += [(None, rate) for rate in rates]
    for seed in seeds:
        for load, qps in points:
            for arm in arms:
                spec = replace(arm.spec(base), seed=seed, qps=qps)
                yield Step(arm.name, spec.filled(), load)


def run_steps(
    directory: Path,
    todo: Sequence[Step],
    *,
    simulate: Callable[[SimSpec], dict[str, Any]] | None = None,
    done: Callable[[Step, bool], None] = lambda step, ran: None,
) -> int:
    """Run what ``directory`` does not have yet; how many that were. ``done`` hears of every step.

    A file appears whole or not at all. Raises SweepMismatch rather than overwrite.
    """
    directory.mkdir(parents=True, exist_ok=True)
    known_b1: dict[str, float | None] = {}
    ran = 0
    for step in todo:
        file = directory / step.file_name
        if file.exists():
            _check_same(file, step)
            done(step, False)
            continue
        made = report(run(step.spec), known_b1) if simulate is None else simulate(step.spec)
        result = {**made, "arm": step.arm, "load": step.load}
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, file)
        ran += 1
        done(step, True)
    return ran


def _check_same(file: Path, step: Step) -> None:
    """JSON on both sides: a tuple and a list are the same there."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    told = json.loads(json.dumps(step.spec.to_json()))
    differing = sorted(name for name in told if kept["config"].get(name) != told[name])
    if differing:
        raise SweepMismatch(
            f"{file} was run with another {', '.join(differing)}: choose another directory, "
            "or delete the file"
        )


def load_results(directory: Path, names: Container[str] | None = None) -> list[dict[str, Any]]:
    """Every run in the directory (or those with these file names), by file name.

    Raises ValueError if there is none.
    """
    files = [f for f in sorted(directory.glob("*.seed*.json")) if names is None or f.name in names]
    if not files:
        raise ValueError(f"{directory} holds no runs")
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
