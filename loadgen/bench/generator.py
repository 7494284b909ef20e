"""`prism-loadgen bench generator`: how many scheduled requests/s the generator keeps, and how late it is.

Against a server that does nothing, so that what is late is the generator (or the machine).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np

from loadgen.arrivals import ARRIVALS
from loadgen.bench.noop_server import noop_server
from loadgen.bench.path import body
from loadgen.bench.priority import ORDINARY, REAL_TIME, real_time_priority
from loadgen.checkout import git_commit
from loadgen.metrics import summarize
from loadgen.rows import PlannedRequest
from loadgen.workers import Target, fire, processes_for

LATENESS_P99_S = 0.020


def measure(
    url: str, rate: float, seconds: float, arrivals: str, processes: int | None, seed: int
) -> dict[str, Any]:
    """One run at ``rate`` requests/s for about ``seconds``: lateness and what a client saw."""
    count = round(rate * seconds)
    times = ARRIVALS[arrivals](count, rate, np.random.default_rng(seed))
    requests = [
        PlannedRequest(at_s, json.loads(body(i, streaming=True))) for i, at_s in enumerate(times)
    ]
    used = processes or processes_for(rate)
    rows = fire(requests, Target(url, timeout_s=60.0), processes=used)
    summary = summarize(rows)
    first_s, last_s = times[0], max(r.sent_s or 0.0 for r in rows)
    late = summary["lateness_s"]
    return {
        "rate": rate,
        "arrivals": arrivals,
        "seed": seed,
        "requests": count,
        "processes": used,
        "outcomes": summary["outcomes"],
        "sent_per_s": (count - 1) / (last_s - first_s) if count > 1 else None,
        "lateness_s": late,
        "ttft_s": summary["ttft_s"],
        "holds": summary["outcomes"] == {"answered": count} and late["p99"] < LATENESS_P99_S,
    }


def line(point: dict[str, Any]) -> str:
    """One measured rate for people."""
    late, ttft = point["lateness_s"], point["ttft_s"]
    return (
        f"{point['rate']:8.0f} {point['processes']:9d} {point['sent_per_s'] or 0.0:10.1f}"
        f" {1000 * late['p50']:9.2f} {1000 * late['p99']:9.2f} {1000 * late['max']:9.2f}"
        f" {1000 * ttft.get('p99', float('nan')):9.2f}  {'yes' if point['holds'] else 'no'}"
    )


@click.command()
@click.option(
    "--rate",
    "rates",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    default=(500.0,),
    show_default=True,
    help="Scheduled requests/s; may be given several times.",
)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--arrivals", type=click.Choice(list(ARRIVALS)), default="poisson", show_default=True)
@click.option("--processes", type=click.IntRange(1), help="Default: as many as the rate needs.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first one.")
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of a rate."
)
@click.option(
    "--priority",
    type=click.Choice([REAL_TIME, ORDINARY]),
    default=REAL_TIME,
    show_default=True,
    help="Of generator and server; real-time only where the machine allows it.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
def generator(
    rates: Sequence[float],
    seconds: float,
    arrivals: str,
    processes: int | None,
    seed: int,
    seeds: int,
    priority: str,
    json_path: Path | None,
) -> None:
    """Fire streamed chats at a server that does nothing; how late did they leave?

    A rate holds if every request is answered and the P99 of lateness is below 20 ms.
    """
    load_before = os.getloadavg()[0]
    click.echo("    rate processes     sent/s   p50 ms    p99 ms    max ms  TTFT p99  holds")
    points = []
    wanted = real_time_priority() if priority == REAL_TIME else nullcontext(ORDINARY)
    with wanted as had, noop_server() as url:
        for rate in rates:
            for number in range(seed, seed + seeds):
                points.append(measure(url, rate, seconds, arrivals, processes, number))
                click.echo(line(points[-1]))
    click.echo(f"{had} priority" + ("" if had == priority else ": real-time is not allowed here"))
    result = {
        "bench": "generator",
        "commit": git_commit(),
        "cpus": os.cpu_count(),
        "priority": had,
        "machine_load_before": load_before,
        "lateness_p99_limit_s": LATENESS_P99_S,
        "points": points,
    }
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
