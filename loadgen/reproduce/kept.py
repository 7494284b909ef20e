"""``runs.csv``: a line a run with all that claims and tables are computed from, written and read again."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from loadgen.sweep.tables import HASHES

RUNS_CSV = "runs.csv"

FIGURES = {
    "hit_rate": "hit_rate",
    "hit_rate_nonglobal": "hit_rate_nonglobal",
    "b0": "bounds.b0",
    "b1": "bounds.b1",
    "b3": "bounds.b3",
    "efficiency": "efficiency",
    "ttft_mean_s": "ttft_s.mean",
    "ttft_p50_s": "ttft_s.p50",
    "ttft_p90_s": "ttft_s.p90",
    "ttft_p95_s": "ttft_s.p95",
    "ttft_p99_s": "ttft_s.p99",
    "least_p99_s": "ttft_p99_least_s",
    "max_wait_s": "max_wait_s",
    "latency_mean_s": "latency_s.mean",
    "latency_p99_s": "latency_s.p99",
    "throughput_rps": "throughput_rps",
}
"""Column -> path in a run's JSON."""
_COLUMNS = (
    *("setting", "arm", "qps", "load", "seed", "requests", "asked", *FIGURES),
    *(f"{name}_hash" for name in HASHES),
    "git_commit",
)


def figure(result: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a run by its dotted path (``ttft_s.p99``); None where the run has none."""
    value: Any = result
    for name in metric.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def asked(run: Mapping[str, Any]) -> int:
    """How many requests the run was told to serve; a recorded trace may have had fewer."""
    config = run.get("config") or {}
    return int(run.get("asked") or config.get("requests") or run["requests"])


def write_runs(file: Path, runs: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Runs by setting, in full precision: what is computed from the file is what is from the runs."""
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for setting, run in runs:
            told = [
                run["arm"],
                run["qps"],
                run.get("load"),
                run["seed"],
                run["requests"],
                asked(run),
            ]
            figures = [figure(run, path) for path in FIGURES.values()]
            hashes = [run["hashes"][name] for name in HASHES]
            writer.writerow([setting, *told, *figures, *hashes, run.get("git_commit")])


def read_runs(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What ``write_runs`` wrote, as runs' JSON would have it.

    Raises ValueError with the line of a run that cannot be read.
    """
    with file.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 2):
            try:
                yield row["setting"], _run(row)
            except (KeyError, ValueError) as error:
                raise ValueError(f"{file}, line {number}: {error!r}") from None


def _run(row: Mapping[str, str]) -> dict[str, Any]:
    run: dict[str, Any] = {
        "arm": row["arm"],
        "qps": float(row["qps"]),
        "load": float(row["load"]) if row["load"] else None,
        "seed": int(row["seed"]),
        "requests": int(row["requests"]),
        "asked": int(row["asked"]),
        "hashes": {name: row[f"{name}_hash"] for name in HASHES},
        "git_commit": row["git_commit"] or None,
    }
    for name, path in FIGURES.items():
        if row[name]:
            *parents, last = path.split(".")
            place = run
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = float(row[name])
    return run
