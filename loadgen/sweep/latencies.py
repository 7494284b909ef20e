"""Latency of whole requests, arm against arm, as Preble compares placements. Runs nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.markdown import markdown_table
from loadgen.sweep.intervals import Interval, paired_change
from loadgen.sweep.tables import check_comparable

FIGURES = ("mean", "p99")


@dataclass(frozen=True)
class LatencyRow:
    """One arm at one rate; means over seeds, in seconds. ``times_*`` say how many times shorter than
    the baseline's its figures are, paired by seed (geometric mean); None for the baseline itself.

    ``floor_*_s`` are what even load and the hits of B3 would leave (``loadgen.bounds.latency``), the
    least over the arms' bounds; None for a rate that cannot be served.
    """

    arm: str
    load: float | None
    qps: float
    seeds: tuple[int, ...]
    hit_rate: float
    efficiency: float
    latency_s: dict[str, float]
    ttft_s: dict[str, float]
    floor_s: dict[str, float | None]
    answered: float
    times_latency: dict[str, Interval] | None
    times_ttft: dict[str, Interval] | None


def latency_rows(results: Iterable[dict[str, Any]], baseline: str) -> list[LatencyRow]:
    """Rows by rate, arms in the order of the results. Raises Incomparable, or ValueError for an
    unknown baseline."""
    points: dict[float, dict[str, dict[int, dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for result in results:
        points[result["qps"]][result["arm"]][result["seed"]] = result
    rows: list[LatencyRow] = []
    for qps in sorted(points):
        arms = points[qps]
        check_comparable(qps, arms)
        if baseline not in arms:
            raise ValueError(f"there is no arm {baseline!r} at {qps:.4g}/s")
        rows += [
            _row(arm, by_seed, None if arm == baseline else arms[baseline])
            for arm, by_seed in arms.items()
        ]
    return rows


def _row(
    arm: str, by_seed: dict[int, dict[str, Any]], baseline: dict[int, dict[str, Any]] | None
) -> LatencyRow:
    seeds = tuple(sorted(by_seed))
    runs = [by_seed[seed] for seed in seeds]
    others = None if baseline is None else [baseline[seed] for seed in seeds]

    def mean(*path: str) -> float:
        values = _values(runs, *path)
        return sum(values) / len(values)

    def times(name: str) -> dict[str, Interval] | None:
        if others is None:
            return None
        return {f: _times(_values(others, name, f), _values(runs, name, f)) for f in FIGURES}

    served = all(run["latency_floor_s"]["mean"] is not None for run in runs)
    return LatencyRow(
        arm=arm,
        load=runs[0]["load"],
        qps=runs[0]["qps"],
        seeds=seeds,
        hit_rate=mean("hit_rate"),
        efficiency=mean("efficiency"),
        latency_s={f: mean("latency_s", f) for f in FIGURES},
        ttft_s={f: mean("ttft_s", f) for f in FIGURES},
        floor_s={f: mean("latency_floor_s", f) if served else None for f in FIGURES},
        answered=mean("answered_in_arrival_period"),
        times_latency=times("latency_s"),
        times_ttft=times("ttft_s"),
    )


def _times(theirs: Sequence[float], ours: Sequence[float]) -> Interval:
    """theirs / ours."""
    change = paired_change(theirs, ours)
    return Interval(*(None if value is None else 1.0 + value for value in change))  # type: ignore[arg-type]


def _values(runs: Sequence[dict[str, Any]], *path: str) -> list[float]:
    found = []
    for run in runs:
        value: Any = run
        for name in path:
            value = value[name]
        found.append(float(value))
    return found


_HEAD = (
    "load", "req/s", "arm", "hit", "h/B3", "latency", "P99", "TTFT", "P99", "floor", "P99",
    "mean, times shorter", "P99, times shorter", "answered",
)  # fmt: skip


def latency_markdown(rows: Sequence[LatencyRow]) -> str:
    """A table for people; brackets are 95% intervals over seeds, paired."""
    return markdown_table(_HEAD, map(_cells, rows)) + "\n"


def _cells(row: LatencyRow) -> list[str]:
    return [
        "" if row.load is None else f"{row.load:g}",
        f"{row.qps:.1f}",
        row.arm,
        f"{row.hit_rate:.1%}",
        f"{row.efficiency:.2f}",
        *(f"{row.latency_s[f]:.2f}" for f in FIGURES),
        *(f"{row.ttft_s[f]:.3f}" for f in FIGURES),
        *(_seconds(row.floor_s[f]) for f in FIGURES),
        *(_ratio(row.times_latency, f) for f in FIGURES),
        f"{row.answered:.1%}",
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ratio(times: dict[str, Interval] | None, figure: str) -> str:
    if times is None:
        return ""
    interval = times[figure]
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.2f}"
    return f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
