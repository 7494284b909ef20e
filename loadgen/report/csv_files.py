"""A measurement as CSV: one line a point, and one line a request. Computes nothing of its own."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.metrics import TTFT_TERMS, ttft_term
from loadgen.report.points import Point, loads
from loadgen.rows import RequestRow

_SPREADS = ("ttft_s", "tpot_s", "itl_s", "latency_s", "lateness_s")
_OF_SPREAD = ("mean", "p50", "p90", "p95", "p99", "max")


def write_points(points: Sequence[Point], path: Path) -> None:
    """One line a run; figures of saturated runs stand there, and are marked; empty: could not be told."""
    past = {load.load: load.saturated if load.told else None for load in loads(points)}
    _write(path, [_point(p, past[p.load]) for p in points])


def _point(point: Point, past: bool | None) -> dict[str, Any]:
    summary = point.summary
    goodput = summary["goodput"] or {}
    line: dict[str, Any] = {
        "load": point.load,
        "rate": point.rate,
        "concurrency": point.record.config.get("concurrency"),
        "seed": point.seed,
        "saturated": past,
        "requests": summary["requests"],
        "answered": summary["outcomes"].get("answered", 0),
        "answered_per_s": summary["answered_per_s"],
        "answered_in_arrival_period": summary["answered_in_arrival_period"],
        "goodput_per_s": goodput.get("per_s"),
        "goodput_share": goodput.get("share"),
        "hit_rate": summary["hit_rate"],
        "hit_rate_from_start": point.hit_rate_from_start,
        **{f"bound_{name}": value for name, value in point.bounds.items()},
    }
    for name in _SPREADS:
        line |= _spread(name, summary[name], _OF_SPREAD)
    for term in TTFT_TERMS:
        line |= _spread(term, summary["ttft_terms_s"][term], ("mean", "p99"))
    return line


def _spread(name: str, figures: Mapping[str, Any], which: Sequence[str]) -> dict[str, Any]:
    stem = name.removesuffix("_s")
    return {f"{stem}_{column}_s": figures.get(column) for column in which}


def write_requests(points: Sequence[Point], path: Path) -> None:
    """One line a request, warm-up marked; ``chunk_s`` are the raw times of the chunks with content."""
    _write(
        path,
        [
            {"load": p.load, "seed": p.seed, "warm_up": row.scheduled_s < p.from_s, **_request(row)}
            for p in points
            for row in p.record.rows
        ],
    )


def _request(row: RequestRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "scheduled_s": row.scheduled_s,
        "sent_s": row.sent_s,
        "headers_s": row.headers_s,
        "ended_s": row.ended_s,
        "outcome": str(row.outcome),
        "status": row.status,
        "error_code": row.error_code,
        "replica": row.replica,
        "lane": row.lane,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "output_tokens": row.output_tokens,
        "ttft_s": row.ttft_s,
        "tpot_s": row.tpot_s,
        "latency_s": row.latency_s,
        **{term: ttft_term(row, term) for term in TTFT_TERMS},
        "chunk_s": " ".join(f"{t:.6f}" for t in row.chunk_s),
    }


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for line in lines for name in line))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)
