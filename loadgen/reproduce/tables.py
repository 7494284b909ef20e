"""Rows of a reproduction: one arm in one setting at one rate, over seeds; and CSV files of them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.reproduce.experiments import SCREENED, SCREENING, Experiment
from loadgen.reproduce.kept import FIGURES, figure
from loadgen.reproduce.measures import Figure
from loadgen.reproduce.results import BySeed, Results
from loadgen.reproduce.settings import SETTINGS
from loadgen.reproduce.verdicts import Answer, Verdict
from loadgen.sweep.intervals import (
    Interval,
    mean_interval,
    paired_change,
    paired_difference,
)

METRICS = {name: path for name, path in FIGURES.items() if name not in ("hit_rate_nonglobal", "b0")}
"""Column -> path in a run's JSON."""


@dataclass(frozen=True)
class Row:
    """Means over ``seeds`` with intervals; a column that a run does not have is missing.

    ``hit_gain`` and ``p99_change`` are against the experiment's first arm, paired by seed; None for
    that arm itself, or where it has other seeds.
    """

    experiment: str
    setting: str
    arm: str
    qps: float
    load: float | None
    seeds: tuple[int, ...]
    values: dict[str, Interval]
    hit_gain: Interval | None = None
    p99_change: Interval | None = None


def rows(experiment: Experiment, results: Results) -> Iterator[Row]:
    """What ran of an experiment, by setting, rate and arm. Raises UnknownKnee."""
    seen: set[tuple[str, str, float]] = set()
    wanted = range(experiment.first_seed, experiment.first_seed + experiment.seeds)
    for setting, step in experiment.steps():
        qps = step.spec.qps or 0.0
        if (setting, step.arm, qps) in seen:
            continue
        seen.add((setting, step.arm, qps))
        runs = results.at(setting, step.arm, qps)
        by_seed = {seed: runs[seed] for seed in wanted if seed in runs}
        if not by_seed:
            continue
        gain = change = None
        first = results.at(setting, experiment.arms[0], qps)
        if step.arm != experiment.arms[0] and by_seed.keys() <= first.keys():
            results.seeds(setting, [experiment.arms[0], step.arm], [qps])
            gain = paired_difference(_of(by_seed, "hit_rate"), _of(first, "hit_rate", by_seed))
            change = paired_change(_of(by_seed, "ttft_s.p99"), _of(first, "ttft_s.p99", by_seed))
        values = _values(by_seed)
        seeds = tuple(by_seed)
        yield Row(experiment.name, setting, step.arm, qps, step.load, seeds, values, gain, change)


def _of(by_seed: BySeed, path: str, seeds: Iterable[int] | None = None) -> list[float]:
    return [figure(by_seed[s], path) or 0.0 for s in (by_seed if seeds is None else seeds)]


def screened(
    results: Results, settings: Iterable[str], load: float, compared: Sequence[str]
) -> Iterator[tuple[str, str, float, str, float]]:
    """By setting, the best P99 (s) of the peers that are compared with, and of those that aren't."""
    for setting in settings:
        tails = {
            arm: p99
            for arm in results.arms(setting)
            for run in results.at(setting, arm, load * SETTINGS[setting].knee_qps()).values()
            if run["seed"] == SCREENING.first_seed and (p99 := figure(run, "ttft_s.p99"))
        }
        inside = [arm for arm in tails if arm in compared]
        outside = [arm for arm in tails if arm in SCREENED and arm not in compared]
        if inside and outside:
            best, other = min(inside, key=tails.__getitem__), min(outside, key=tails.__getitem__)
            yield setting, best, tails[best], other, tails[other]


def _values(by_seed: BySeed) -> dict[str, Interval]:
    found = {}
    for name, path in METRICS.items():
        values = [v for r in by_seed.values() if (v := figure(r, path)) is not None]
        if len(values) == len(by_seed):
            found[name] = mean_interval(values)
    return found


def write_results(file: Path, table: Iterable[Row]) -> None:
    """Every row with means and the ends of intervals."""
    head = ["experiment", "setting", "arm", "qps", "load", "seeds"]
    for name in METRICS:
        head += [name, f"{name}_low", f"{name}_high"]
    for name in ("hit_gain", "p99_change"):
        head += [name, f"{name}_low", f"{name}_high"]
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(head)
        for row in table:
            cells: list[Any] = [row.experiment, row.setting, row.arm, f"{row.qps:.6g}", row.load]
            cells.append(" ".join(map(str, row.seeds)))
            paired = [row.hit_gain, row.p99_change]
            for value in [*(row.values.get(name) for name in METRICS), *paired]:
                cells += ["", "", ""] if value is None else [_short(x) for x in value]
            writer.writerow(cells)


def write_claims(file: Path, verdicts: Sequence[Verdict]) -> None:
    """One line for each figure of each claim under each reading."""
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, _CLAIM_COLUMNS, lineterminator="\n")
        writer.writeheader()
        for verdict in verdicts:
            for answer in verdict.answers:
                writer.writerows(_claim_row(verdict, answer, f) for f in answer.figures)


_CLAIM_COLUMNS = (
    "claim", "source", "where", "says", "claimed", "reading", "metric", "qps", "ours", "low", "high",
    "bound", "p99_over_least", "compared_with", "seeds", "holds", "verdict",
)  # fmt: skip


def _claim_row(verdict: Verdict, answer: Answer, found: Figure) -> dict[str, Any]:
    claim = verdict.claim
    return {
        "claim": claim.id,
        "source": claim.source,
        "where": claim.where,
        "says": claim.says,
        "claimed": claim.number,
        "reading": answer.reading.name,
        "metric": found.metric,
        "qps": _short(found.qps),
        "ours": _short(found.value.mean),
        "low": _short(found.value.low),
        "high": _short(found.value.high),
        "bound": _short(found.bound),
        "p99_over_least": _short(found.over_bound),
        "compared_with": found.other,
        "seeds": len(found.seeds),
        "holds": answer.holds,
        "verdict": verdict.word,
    }


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
