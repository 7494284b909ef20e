"""A measurement as one HTML page: no script, no other file, no foreign host. Computes nothing new."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from loadgen.metrics import TTFT_TERMS, late_warning
from loadgen.report.csv_files import write_points, write_requests
from loadgen.report.plots import draw
from loadgen.report.points import Load, Point, dig, loads, to_json
from loadgen.slo import Slo


def write_report(points: Sequence[Point], directory: Path) -> Path:
    """``summary.json``, ``points.csv``, ``requests.csv`` and ``report.html``; the page's path."""
    result = to_json(points)
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    (directory / "summary.json").write_text(text, encoding="utf-8")
    write_points(points, directory / "points.csv")
    write_requests(points, directory / "requests.csv")
    page = directory / "report.html"
    page.write_text(render(points, result), encoding="utf-8")
    return page


def render(points: Sequence[Point], result: dict[str, Any]) -> str:
    """The page; ``result`` is the points' ``to_json``."""
    by_load = loads(points)
    of_load = {load.load: load for load in by_load}
    started = min(p.record.started_unix_s for p in points)
    environment = Environment(
        loader=PackageLoader("loadgen.report", "."), autoescape=True, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        result=result,
        runs=len(points),
        started=datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        unit="requests/s" if points[0].rate is not None else "clients",
        slo=_slo(points[0].slo),
        rows=[_row(p, of_load[p.load]) for p in points],
        groups=list(_groups(points)),
        warnings=[f"{p.label}: {w}" for p in points if (w := _late(p)) is not None],
        plots=draw(by_load),
    )


def _late(point: Point) -> str | None:
    cores = point.record.config.get("cores") or 1
    return late_warning(point.summary, point.record.processes, cores)


def _slo(slo: Slo | None) -> str:
    limits = {} if slo is None else slo.to_json()
    named = {"ttft_s": "TTFT", "tpot_s": "TPOT", "latency_s": "end-to-end latency"}
    return ", ".join(f"{named[k]} ≤ {v:g} s" for k, v in limits.items() if v is not None)


def _row(point: Point, load: Load) -> dict[str, Any]:
    summary = point.summary
    cells = [str(point.seed), f"{summary['outcomes'].get('answered', 0)} of {summary['requests']}"]
    cells.append(_number(summary["answered_per_s"]))
    cells += _goodput(point, summary)
    cells.append(_percent(summary["hit_rate"]))
    cells += [*_cells(summary), _milliseconds(dig(summary, ("lateness_s", "p99")))]
    errors = ", ".join(f"{n} {kind}" for kind, n in sorted(summary["errors"].items()))
    return {
        "load": f"{point.load:g}",
        "seed": point.seed,
        "cells": cells,
        "past": load.saturated,
        "told": load.told,
        "reason": point.saturation.reason,
        "errors": errors,
    }


def _groups(points: Sequence[Point]) -> Iterator[list[str]]:
    for point in points:
        for kind in ("replica", "lane"):
            for name, figures in point.summary[f"by_{kind}"].items():
                errors = ", ".join(f"{n} {e}" for e, n in sorted(figures["errors"].items()))
                yield [
                    f"{point.load:g}, {point.seed}",
                    f"{kind} {name}",
                    f"{figures['answered']} of {figures['requests']}",
                    errors,
                    *_goodput(point, figures),
                    _percent(figures["hit_rate"]),
                    *_cells(figures),
                ]


def _goodput(point: Point, figures: Mapping[str, Any]) -> list[str]:
    """A cell where there is an SLO to be kept."""
    return [] if point.slo is None else [_number(dig(figures, ("goodput", "per_s")))]


_TIMES = (
    ("ttft_s", "p50"),
    ("ttft_s", "p99"),
    *(("ttft_terms_s", term, "mean") for term in TTFT_TERMS),
    ("tpot_s", "mean"),
    ("itl_s", "p99"),
    ("latency_s", "p50"),
    ("latency_s", "p99"),
)


def _cells(figures: Mapping[str, Any]) -> list[str]:
    return [_milliseconds(dig(figures, path)) for path in _TIMES]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.1f}"
