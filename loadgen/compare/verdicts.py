"""What a comparison was asked to show, and whether its intervals show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from loadgen.compare.arms import DEFAULT, FAITHFUL
from loadgen.compare.tables import (
    Pair,
    Result,
    against,
    best_native,
    by_load,
    shared,
    told_apart,
)
from loadgen.sweep.intervals import Interval

P99_TARGET = 0.75
HIT_TARGET = 1.2


@dataclass(frozen=True)
class Verdict:
    """A question, its answer in words, and whether what was asked for is met.

    ``seeds``: how many the two arms in question both have; None for a question about all of them.
    """

    question: str
    met: bool
    answer: str
    seeds: int | None = None


def verdicts(results: Iterable[Result]) -> list[Verdict]:
    """Every question that the runs can answer. Raises Incomparable."""
    runs = list(results)
    found = []
    for load, arms in by_load(runs).items():
        best = best_native(arms)
        for other, ask in ((best, _ratios), ("sglang-fcfs", _beats), (FAITHFUL, _beats)):
            changes = None if other is None else against(arms, DEFAULT, other)
            if other is not None and changes is not None:
                seeds = len(shared(arms[DEFAULT], arms[other]))
                found += [replace(v, seeds=seeds) for v in ask(load, other, changes)]
    pairs = told_apart(runs)
    return [*found, _order(pairs)] if pairs else found


def _ratios(load: float, best: str, changes: Mapping[str, Interval]) -> list[Verdict]:
    return [
        _ratio(load, best, "P99 TTFT", changes["P99 TTFT"], P99_TARGET, below=True),
        _ratio(load, best, "hit rate", changes["hit rate"], HIT_TARGET, below=False),
    ]


def _ratio(
    load: float, best: str, name: str, change: Interval, target: float, *, below: bool
) -> Verdict:
    ratio = 1 + change.mean
    sign = "≤" if below else "≥"
    return Verdict(
        f"{name} of {DEFAULT} {sign} {target:g} × {best}'s at {load:g} of the knee",
        ratio <= target if below else ratio >= target,
        f"{ratio:.2f}{_ends(change, 1.0)}",
    )


def _beats(load: float, other: str, changes: Mapping[str, Interval]) -> list[Verdict]:
    change = changes["P99 TTFT"]
    return [
        Verdict(
            f"{DEFAULT} beats {other} in P99 TTFT at {load:g} of the knee, by an interval without 0",
            change.mean < 0 and change.excludes_zero,
            f"{100 * change.mean:+.0f}%{_percents(change)}",
        )
    ]


def _order(pairs: list[Pair]) -> Verdict:
    agreeing = [pair for pair in pairs if pair.agrees]
    return Verdict(
        "where two arms differ by more than their interval, the simulator orders them alike",
        len(agreeing) == len(pairs),
        f"{len(agreeing)} of {len(pairs)} pairs",
    )


def _ends(interval: Interval, offset: float) -> str:
    if interval.low is None or interval.high is None:
        return " (one seed)"
    return f" [{offset + interval.low:.2f}, {offset + interval.high:.2f}]"


def _percents(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return " (one seed)"
    return f" [{100 * interval.low:+.0f}, {100 * interval.high:+.0f}]"
