"""The points of a measurement: run files of one source at several loads, and what they come to.

A point at which the server was saturated is marked and left out of means: what it shows depends on how
long one measured. No file but run files is read here, and none is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from loadgen.intervals import mean_interval
from loadgen.metrics import hit_rate, summarize
from loadgen.rows import RequestRow, RunRecord
from loadgen.saturation import Saturation, detect
from loadgen.slo import Slo

AVERAGED = {
    "answered_per_s": ("answered_per_s",),
    "ttft_p50_s": ("ttft_s", "p50"),
    "ttft_p99_s": ("ttft_s", "p99"),
    "tpot_mean_s": ("tpot_s", "mean"),
    "itl_p99_s": ("itl_s", "p99"),
    "latency_p50_s": ("latency_s", "p50"),
    "latency_p99_s": ("latency_s", "p99"),
    "hit_rate": ("hit_rate",),
    "goodput_per_s": ("goodput", "per_s"),
    "goodput_share": ("goodput", "share"),
}
"""What is averaged over seeds: name -> where it is in a summary."""


SHARED = ("base_url", "flush", "warm_up", "slo", "arrivals", "timeout_s", "pool_tokens")
"""Options that the runs of a directory have in common, beside their prompts."""


class Unequal(ValueError):
    """Run files of one directory that did not ask the same."""


@dataclass(frozen=True)
class Point:
    """One run at one load; ``slo`` is what its goodput is measured against."""

    record: RunRecord
    slo: Slo | None = None

    @property
    def rate(self) -> float | None:
        """Requests/s of an open loop; None for a closed one."""
        return self.record.config.get("rate")

    @property
    def load(self) -> float:
        """The rate, or the number of clients of a closed loop."""
        return float(self.rate if self.rate is not None else self.record.config["concurrency"])

    @property
    def seed(self) -> int:
        return int(self.record.config["seed"])

    @property
    def label(self) -> str:
        return f"{self.load:g} requests/s" if self.rate is not None else f"{self.load:g} clients"

    @cached_property
    def from_s(self) -> float:
        """When the first request after the warm-up was due."""
        due_s = sorted(r.scheduled_s for r in self.record.rows)
        warm_up = int(self.record.config.get("warm_up_requests", 0))
        return due_s[warm_up] if warm_up < len(due_s) else 0.0

    @cached_property
    def measured(self) -> list[RequestRow]:
        """The rows after the warm-up."""
        return [r for r in self.record.rows if r.scheduled_s >= self.from_s]

    @cached_property
    def summary(self) -> dict[str, Any]:
        return summarize(
            self.record.rows,
            arrival_period_s=self.record.arrival_period_s or None,
            from_s=self.from_s,
            slo=self.slo,
            closed=self.rate is None,
        )

    @cached_property
    def saturation(self) -> Saturation:
        """A closed loop is never saturated: it slows down instead."""
        if self.rate is None:
            return Saturation(False, "a closed loop slows down with its server")
        return detect(self.record.rows, self.from_s, self.record.arrival_period_s)

    @property
    def bounds(self) -> Mapping[str, float | None]:
        """Upper bounds on the hit rate of all the point's requests, warm-up included."""
        return self.record.config.get("bounds") or {}

    @cached_property
    def hit_rate_from_start(self) -> float | None:
        """Hit rate of all requests, warm-up included: what the bounds are bounds of."""
        return hit_rate(self.record.rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "load": self.load,
            "rate": self.rate,
            "concurrency": self.record.config.get("concurrency"),
            "seed": self.seed,
            "saturation": asdict(self.saturation),
            "measured_from_s": self.from_s,
            "hit_rate_from_start": self.hit_rate_from_start,
            "bounds": dict(self.bounds),
            "prompts_sha256": self.record.prompts_sha256,
            "arrivals_sha256": self.record.arrivals_sha256,
            "started_unix_s": self.record.started_unix_s,
            "summary": self.summary,
        }


@dataclass(frozen=True)
class Load:
    """The points of one load, one a seed. ``saturated``: any of them is, or one at a lower load was.

    ``told``: whether all of its points could say so, or one at a lower load did.
    """

    load: float
    points: tuple[Point, ...]
    saturated: bool

    @cached_property
    def told(self) -> bool:
        return self.saturated or all(p.saturation.saturated is not None for p in self.points)

    @property
    def reason(self) -> str:
        """Why the load counts as saturated, as not, or as neither, in words."""
        verdict = None if not self.told else self.saturated
        found = (p.saturation for p in self.points if p.saturation.saturated is verdict)
        return next((s.reason for s in found), "a lower load was saturated")

    @property
    def label(self) -> str:
        return self.points[0].label

    @cached_property
    def means(self) -> dict[str, tuple[float, float | None]] | None:
        """Mean over seeds and half of its 95% interval (None for one seed); None if saturated."""
        if self.saturated:
            return None
        found = {}
        for name, path in AVERAGED.items():
            values = [v for p in self.points if (v := dig(p.summary, path)) is not None]
            if len(values) == len(self.points):
                mean, half = mean_interval(values)
                found[name] = (mean, half if math.isfinite(half) else None)
        return found

    def bound(self, name: str) -> float | None:
        """The mean of a bound over the seeds; None where one has none."""
        values = [v for p in self.points if (v := p.bounds.get(name)) is not None]
        return sum(values) / len(values) if values and len(values) == len(self.points) else None


def dig(summary: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """A figure of a summary by its path; None where there is none."""
    value: Any = summary
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def read_points(directory: Path, slo: Slo | None = None) -> list[Point]:
    """All run files (``*.run.json``) by load and seed, with ``slo`` or the one of their run.

    ValueError where there is none; Unequal where they asked different prompts or were told different
    options, or mix loops.
    """
    records = [RunRecord.read(path) for path in sorted(directory.glob("*.run.json"))]
    if not records:
        raise ValueError(f"{directory} holds no run files (*.run.json)")
    if len({r.prompts_sha256 for r in records}) > 1:
        raise Unequal(f"the runs in {directory} asked different prompts")
    for record in records:
        other = differing(record.config, records[0].config, () if slo is None else ("slo",))
        if other:
            raise Unequal(f"the runs in {directory} differ in their {', '.join(other)}")
    points = [Point(r, slo or _slo_of(r)) for r in records]
    if len({p.rate is None for p in points}) > 1:
        raise Unequal(f"{directory} mixes open and closed loops")
    return sorted(points, key=lambda p: (p.load, p.seed))


def differing(
    one: Mapping[str, Any], other: Mapping[str, Any], but: Sequence[str] = ()
) -> list[str]:
    """Which of the ``SHARED`` options two runs' configs disagree in."""
    return [name for name in SHARED if name not in but and one.get(name) != other.get(name)]


def _slo_of(record: RunRecord) -> Slo | None:
    limits = record.config.get("slo")
    return Slo(**limits) if limits else None


def loads(points: Sequence[Point]) -> list[Load]:
    """Points by load, ascending; from the first saturated load on, all are past the knee."""
    return list(_loads(points))


def _loads(points: Sequence[Point]) -> Iterator[Load]:
    past = False
    for load in sorted({p.load for p in points}):
        members = tuple(p for p in points if p.load == load)
        past = past or any(p.saturation.saturated for p in members)
        yield Load(load, members, past)


def to_json(points: Sequence[Point]) -> dict[str, Any]:
    """The whole measurement, JSON-ready."""
    config = dict(points[0].record.config)
    by_load = loads(points)
    below = [load.load for load in by_load if load.told and not load.saturated]
    return {
        "source": config.get("source"),
        "base_url": config.get("base_url"),
        "commit": config.get("commit"),
        "notes": list(config.get("notes") or ()),
        "slo": points[0].slo.to_json() if points[0].slo else None,
        "highest_load_below_saturation": max(below, default=None),
        "loads_not_told": [load.load for load in by_load if not load.told],
        "loads": [
            {
                "load": load.load,
                "saturated": load.saturated if load.told else None,
                "reason": load.reason,
                "means": None
                if load.means is None
                else {
                    name: {"mean": mean, "half_interval_95": half}
                    for name, (mean, half) in load.means.items()
                },
            }
            for load in by_load
        ],
        "points": [p.to_json() for p in points],
    }
