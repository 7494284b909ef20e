"""A comparison's runs side by side: means and paired intervals over seeds. Runs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from loadgen.sweep.intervals import Interval, mean_interval, paired_change, paired_difference
from loadgen.sweep.tables import HASHES, Incomparable

Result = Mapping[str, Any]
Runs = Mapping[str, Mapping[int, Result]]
"""Of one load: by arm, by seed."""


def hit_rate(result: Result) -> float:
    return float(result["hit_rate"])


def ttft(name: str) -> Callable[[Result], float]:
    """A figure of TTFT in seconds: "mean", "p50", "p90", "p99"."""
    return lambda result: float(result["ttft_s"][name])


@dataclass(frozen=True)
class Row:
    """One arm at one load, means over ``seeds``; times in seconds.

    Changes are against the best native arm at that load, over the ``paired_seeds`` that both have: of
    hit rates the ratio − 1 too; None for that arm itself. ``hit_bound`` is B4 and ``predicted`` what
    the simulator says, None where they were not computed. ``others_cores``: the mean of what else ran
    on the machine.
    """

    arm: str
    load: float
    qps: float
    seeds: tuple[int, ...]
    hit_rate: Interval
    hit_bound: float | None
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: Interval
    throughput_rps: float
    answered: float
    others_cores: float
    paired_seeds: tuple[int, ...]
    hit_change: Interval | None
    p99_change: Interval | None
    mean_change: Interval | None
    predicted_hit_rate: float | None
    predicted_mean_s: float | None
    predicted_p99_s: float | None


@dataclass(frozen=True)
class Pair:
    """Two arms that a measure tells apart: by ``measured``, ``first`` − ``second`` (of times ratio − 1).

    ``predicted`` is the simulator's mean difference. Both are over ``seeds``, which both arms have.
    """

    load: float
    measure: str
    first: str
    second: str
    seeds: tuple[int, ...]
    measured: Interval
    predicted: float

    @property
    def agrees(self) -> bool:
        return (self.measured.mean < 0) == (self.predicted < 0)


def by_load(results: Iterable[Result]) -> dict[float, dict[str, dict[int, Result]]]:
    """All runs by load, arm and seed: arms need not have the same seeds.

    Raises Incomparable if runs of one load and seed differ in prompts, arrivals, rate or engine.
    """
    loads: dict[float, dict[str, dict[int, Result]]] = {}
    for result in results:
        arms = loads.setdefault(result["load"], {})
        arms.setdefault(result["arm"]["name"], {})[result["seed"]] = result
    for load, arms in loads.items():
        _check(load, arms)
    return {
        load: {arm: dict(sorted(by_seed.items())) for arm, by_seed in arms.items()}
        for load, arms in sorted(loads.items())
    }


def _check(load: float, arms: Runs) -> None:
    reference: dict[int, tuple[str, Result]] = {}
    for arm, by_seed in arms.items():
        for seed, result in by_seed.items():
            first, other = reference.setdefault(seed, (arm, result))
            differing = [n for n in HASHES if result["hashes"][n] != other["hashes"][n]]
            differing += ["rate"] if result["qps"] != other["qps"] else []
            if differing:
                raise Incomparable(
                    f"at load {load:g}, seed {seed}, {arm!r} and {first!r} differ in their "
                    f"{', '.join(differing)}"
                )


def shared(
    one: Mapping[int, Result], other: Mapping[int, Result]
) -> dict[int, tuple[Result, Result]]:
    """The pairs of runs of the seeds that two arms both have."""
    return {seed: (run, other[seed]) for seed, run in one.items() if seed in other}


def best_native(arms: Runs) -> str | None:
    """The arm of SGLang's own with the lowest P99 TTFT (geometric mean over seeds).

    Two arms are held against each other by the seeds that both have: the best is the one that wins
    most often, of equals the one of more seeds.
    """
    natives = {
        name: by_seed
        for name, by_seed in arms.items()
        if by_seed and _is_sglangs_own(next(iter(by_seed.values()))["arm"])
    }
    p99 = ttft("p99")

    def beats(one: Mapping[int, Result], other: Mapping[int, Result]) -> bool:
        pairs = shared(one, other).values()
        return sum(math.log(p99(a) / p99(b)) for a, b in pairs) < 0

    def won(name: str) -> tuple[int, int]:
        wins = sum(beats(natives[name], other) for other in natives.values())
        return wins, len(natives[name])

    return max(natives, key=won) if natives else None


def _is_sglangs_own(arm: Mapping[str, Any]) -> bool:
    return bool(arm["native"]) and not arm.get("reorders")


def tabulate(results: Iterable[Result], order: Sequence[str]) -> list[Row]:
    """Rows by load, arms in ``order``. Raises Incomparable."""
    rows = []
    for load, arms in by_load(results).items():
        best = best_native(arms)
        names = sorted(arms, key=lambda name: order.index(name) if name in order else len(order))
        rows += [
            _row(load, name, arms[name], None if best in (None, name) else arms[best])
            for name in names
            if arms[name]
        ]
    return rows


def _row(
    load: float, arm: str, by_seed: Mapping[int, Result], best: Mapping[int, Result] | None
) -> Row:
    runs = list(by_seed.values())
    pairs = {} if best is None else shared(by_seed, best)

    def mean(read: Callable[[Result], float]) -> float:
        return fmean(map(read, runs))

    def change(read: Callable[[Result], float]) -> Interval | None:
        ours, theirs = _columns(pairs, read)
        if not pairs or min((*ours, *theirs)) <= 0:
            return None
        return paired_change(ours, theirs)

    bounds = [run.get("hit_bound") for run in runs]

    def predicted(read: Callable[[Result], float]) -> float | None:
        told = [run.get("predicted") for run in runs]
        return None if None in told else fmean(read(p) for p in told if p is not None)

    return Row(
        arm,
        load,
        float(runs[0]["qps"]),
        tuple(by_seed),
        mean_interval(list(map(hit_rate, runs))),
        None if None in bounds else fmean(float(b) for b in bounds if b is not None),
        mean(ttft("mean")),
        mean(ttft("p50")),
        mean(ttft("p90")),
        mean_interval(list(map(ttft("p99"), runs))),
        mean(lambda r: float(r["throughput_rps"])),
        mean(lambda r: float(r["answered_in_arrival_period"])),
        mean(lambda r: float(r["machine_load"]["others_cores"])),
        tuple(pairs),
        change(hit_rate),
        change(ttft("p99")),
        change(ttft("mean")),
        predicted(hit_rate),
        predicted(ttft("mean")),
        predicted(ttft("p99")),
    )


MEASURES: Mapping[str, Callable[[Result], float]] = {
    "hit rate": hit_rate,
    "mean TTFT": ttft("mean"),
    "P99 TTFT": ttft("p99"),
}


def told_apart(results: Iterable[Result]) -> list[Pair]:
    """Every two arms whose paired interval excludes 0, by load and measure, with the prediction.

    Pairs without a prediction are left out, and so are intervals of a single seed.
    """
    pairs = []
    for load, arms in by_load(results).items():
        for measure, read in MEASURES.items():
            for first, second in combinations(arms, 2):
                pair = _pair(load, measure, read, (first, arms[first]), (second, arms[second]))
                if pair is not None:
                    pairs.append(pair)
    return pairs


def _pair(
    load: float,
    measure: str,
    read: Callable[[Result], float],
    first: tuple[str, Mapping[int, Result]],
    second: tuple[str, Mapping[int, Result]],
) -> Pair | None:
    pairs = shared(first[1], second[1])
    if not pairs:
        return None
    measured = _difference(measure, pairs, read)
    told = [run.get("predicted") for both in pairs.values() for run in both]
    if not measured.excludes_zero or None in told:
        return None
    predicted = _difference(measure, pairs, lambda run: read(run["predicted"]))
    return Pair(load, measure, first[0], second[0], tuple(pairs), measured, predicted.mean)


def _difference(
    measure: str, pairs: Mapping[int, tuple[Result, Result]], read: Callable[[Result], float]
) -> Interval:
    compare = paired_difference if measure == "hit rate" else paired_change
    return compare(*_columns(pairs, read))


def _columns(
    pairs: Mapping[int, tuple[Result, Result]], read: Callable[[Result], float]
) -> tuple[list[float], list[float]]:
    return [read(a) for a, _ in pairs.values()], [read(b) for _, b in pairs.values()]


def against(arms: Runs, ours: str, theirs: str) -> dict[str, Interval] | None:
    """Paired changes of one arm against another by measure, over the seeds that both have.

    None where they share none.
    """
    pairs = shared(arms.get(ours, {}), arms.get(theirs, {}))
    if not pairs:
        return None
    return {name: paired_change(*_columns(pairs, read)) for name, read in MEASURES.items()}
