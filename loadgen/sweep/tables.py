"""A sweep's runs as one table: means over seeds, and paired intervals against one arm. Runs nothing."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.markdown import markdown_table
from loadgen.sweep.intervals import Interval, mean_interval, paired_change, paired_difference

HASHES = ("prompts", "arrivals", "pool")


class Incomparable(ValueError):
    """Runs that would stand side by side did not serve the same; the message names what differs."""


@dataclass(frozen=True)
class Row:
    """One arm at one rate, over seeds. Shares are fractions, times seconds.

    ``p99_change`` and ``hit_gain`` are against the baseline at the same rate, paired by seed; None
    for the baseline itself.
    """

    arm: str
    load: float | None
    qps: float
    seeds: tuple[int, ...]
    hit_rate: Interval
    b0: float
    b1: float | None
    b2: float | None
    b3: float
    b4: float | None
    efficiency: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: Interval
    max_wait_s: float
    throughput_rps: float
    answered: float
    hit_gain: Interval | None = None
    p99_change: Interval | None = None
    mean_change: Interval | None = None


def tabulate(results: Iterable[dict[str, Any]], baseline: str | None = None) -> list[Row]:
    """Rows by rate, then by P99. ``baseline`` names an arm, the first one by default.

    Raises Incomparable if runs of one rate and seed differ in prompts, arrivals or machine, or if an
    arm lacks a seed that another has; ValueError for an unknown baseline.
    """
    points: dict[float, dict[str, dict[int, dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for result in results:
        points[result["qps"]][result["arm"]][result["seed"]] = result
    rows: list[Row] = []
    for qps in sorted(points):
        arms = points[qps]
        check_comparable(qps, arms)
        name = next(iter(arms)) if baseline is None else baseline
        if name not in arms:
            raise ValueError(f"there is no arm {name!r} at {qps:.4g}/s; known: {', '.join(arms)}")
        rows += sorted(
            (
                _row(arm, by_seed, None if arm == name else arms[name])
                for arm, by_seed in arms.items()
            ),
            key=lambda row: row.ttft_p99_s.mean,
        )
    return rows


def check_comparable(qps: float, arms: dict[str, dict[int, dict[str, Any]]]) -> None:
    first, reference = next(iter(arms.items()))
    for arm, by_seed in arms.items():
        if by_seed.keys() != reference.keys():
            raise Incomparable(
                f"at {qps:.4g}/s {arm!r} has seeds {sorted(by_seed)}, {first!r} {sorted(reference)}"
            )
        for seed, result in by_seed.items():
            for name in HASHES:
                if result["hashes"][name] != reference[seed]["hashes"][name]:
                    raise Incomparable(
                        f"at {qps:.4g}/s, seed {seed}, {arm!r} and {first!r} differ in their {name}"
                    )


def _row(
    arm: str, by_seed: dict[int, dict[str, Any]], baseline: dict[int, dict[str, Any]] | None
) -> Row:
    seeds = tuple(sorted(by_seed))
    runs = [by_seed[seed] for seed in seeds]

    def mean(*path: str) -> float:
        return mean_interval(_values(runs, *path)).mean

    def known(group: str, name: str) -> float | None:
        """None where a run lacks it: too many requests, or a run that is older than the figure."""
        values = [run.get(group, {}).get(name) for run in runs]
        return None if None in values else mean(group, name)

    gain = p99 = average = None
    if baseline is not None:
        others = [baseline[seed] for seed in seeds]
        gain = paired_difference(_values(runs, "hit_rate"), _values(others, "hit_rate"))
        p99 = paired_change(_values(runs, "ttft_s", "p99"), _values(others, "ttft_s", "p99"))
        average = paired_change(_values(runs, "ttft_s", "mean"), _values(others, "ttft_s", "mean"))
    return Row(
        arm=arm,
        load=runs[0]["load"],
        qps=runs[0]["qps"],
        seeds=seeds,
        hit_rate=mean_interval(_values(runs, "hit_rate")),
        b0=mean("bounds", "b0"),
        b1=known("bounds", "b1"),
        b2=known("more_bounds", "b2"),
        b3=mean("bounds", "b3"),
        b4=known("more_bounds", "b4"),
        efficiency=mean("efficiency"),
        ttft_mean_s=mean("ttft_s", "mean"),
        ttft_p50_s=mean("ttft_s", "p50"),
        ttft_p90_s=mean("ttft_s", "p90"),
        ttft_p99_s=mean_interval(_values(runs, "ttft_s", "p99")),
        max_wait_s=mean("max_wait_s"),
        throughput_rps=mean("throughput_rps"),
        answered=mean("answered_in_arrival_period"),
        hit_gain=gain,
        p99_change=p99,
        mean_change=average,
    )


def _values(runs: Sequence[dict[str, Any]], *path: str) -> list[float]:
    values = []
    for run in runs:
        value: Any = run
        for name in path:
            value = value[name]
        values.append(0.0 if value is None else float(value))
    return values


_HEAD = (
    "load", "req/s", "arm", "hit", "B0", "B1", "B2", "B3", "B4", "h/B3", "TTFT mean", "P50", "P90", "P99",
    "max wait", "hit gain", "P99 change", "mean change",
)  # fmt: skip


def as_markdown(rows: Sequence[Row]) -> str:
    """A table for people: seconds; intervals are 95%, paired by seed."""
    return markdown_table(_HEAD, map(_cells, rows)) + "\n"


def _cells(row: Row) -> list[str]:
    return [
        "" if row.load is None else f"{row.load:g}",
        f"{row.qps:.2f}",
        row.arm,
        f"{row.hit_rate.mean:.2%}",
        f"{row.b0:.2%}",
        _share(row.b1),
        _share(row.b2),
        f"{row.b3:.2%}",
        _share(row.b4),
        f"{row.efficiency:.3f}",
        f"{row.ttft_mean_s:.2f}",
        f"{row.ttft_p50_s:.2f}",
        f"{row.ttft_p90_s:.2f}",
        f"{row.ttft_p99_s.mean:.2f}",
        f"{row.max_wait_s:.2f}",
        _points(row.hit_gain),
        _change(row.p99_change),
        _change(row.mean_change),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _points(interval: Interval | None) -> str:
    if interval is None:
        return ""
    ends = "" if interval.low is None else f" [{100 * interval.low:+.2f}, {_high(interval):+.2f}]"
    return f"{100 * interval.mean:+.2f} pp{ends}"


def _change(interval: Interval | None) -> str:
    if interval is None:
        return ""
    ends = "" if interval.low is None else f" [{100 * interval.low:+.0f}, {_high(interval):+.0f}]"
    return f"{100 * interval.mean:+.1f}%{ends}"


def _high(interval: Interval) -> float:
    return 100 * (interval.high or 0.0)


def as_csv(rows: Sequence[Row]) -> str:
    """All figures in full; intervals as three columns."""
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        flat = _flat(row)
        if writer is None:
            writer = csv.DictWriter(out, fieldnames=list(flat), lineterminator="\n")
            writer.writeheader()
        writer.writerow(flat)
    return out.getvalue()


_INTERVALS = ("hit_rate", "ttft_p99_s", "hit_gain", "p99_change", "mean_change")


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in vars(row).items():
        if name in _INTERVALS:
            mean, low, high = value or (None, None, None)
            flat |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        else:
            flat[name] = " ".join(map(str, value)) if name == "seeds" else value
    return flat
