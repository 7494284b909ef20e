"""The runs of a reproduction on disk, one JSON each by setting; taken up again where they stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.reproduce.experiments import Experiment
from loadgen.simulate import SimSpec, report, run
from loadgen.sweep import Step, run_steps
from loadgen.traces import Trace, make_trace
from loadgen.traces.data import DataMissing

RUNS = "runs"
QUICK_REQUESTS = 192


@dataclass(frozen=True)
class Todo:
    """One run and the directory that it belongs to."""

    directory: Path
    step: Step

    @property
    def file(self) -> Path:
        return self.directory / self.step.file_name


class Simulator:
    """Runs specs; keeps the last trace, and B1 by prompts, since arms and rates share them."""

    def __init__(self) -> None:
        self._trace_key = ""
        self._trace: Trace | None = None
        self._known_b1: dict[str, float | None] = {}

    def __call__(self, spec: SimSpec) -> dict[str, Any]:
        named = {"seed": spec.seed, "count": spec.requests, **spec.trace_options}
        key = json.dumps([spec.trace, named], sort_keys=True)
        if key != self._trace_key or self._trace is None:
            self._trace = make_trace(spec.trace, **named)
            self._trace_key = key
        return report(run(spec, self._trace), self._known_b1)


def todo(
    out: Path, experiments: Iterable[Experiment], requests_max: int | None = None
) -> Iterator[Todo]:
    """Every run once, though experiments share some. ``requests_max`` cuts traces short."""
    seen: set[Path] = set()
    for experiment in experiments:
        for setting, step in experiment.steps():
            if requests_max is not None:
                cut = replace(step.spec, requests=min(step.spec.requests, requests_max))
                step = replace(step, spec=cut)
            entry = Todo(out / RUNS / setting, step)
            if entry.file not in seen:
                seen.add(entry.file)
                yield entry


def run_all(
    entries: Sequence[Todo],
    keep_going: Callable[[], bool] = lambda: True,
    done: Callable[[Todo, bool], None] = lambda entry, ran: None,
) -> dict[str, str]:
    """Run what is not there yet until ``keep_going`` says no.

    Returns the settings that were left out because their data set is not on this machine, and why.
    Raises SweepMismatch where a file holds a run that was told something else.
    """
    simulator = Simulator()
    without: dict[str, str] = {}
    for entry in entries:
        if not keep_going():
            break
        ran = False
        if entry.directory.name not in without:
            try:
                ran = bool(run_steps(entry.directory, [entry.step], simulate=simulator))
            except DataMissing as missing:
                without[entry.directory.name] = str(missing)
        done(entry, ran)
    return without
