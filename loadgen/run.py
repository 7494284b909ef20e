"""`prism-loadgen run`: fire a file of requests or a trace once at a live OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from loadgen.arrivals import ARRIVALS
from loadgen.client import FlushFailed, flush_cache, served_models
from loadgen.metrics import late_warning, summarize, table
from loadgen.progress import progress
from loadgen.rows import PlannedRequest, RunRecord
from loadgen.slo import Slo, parse_slo
from loadgen.sources import (
    OWN_TIMES,
    Wording,
    at_once,
    load_source,
    schedule,
    source_bounds,
    source_options,
    with_model,
)
from loadgen.workers import Target, WorkerFailed, fire, processes_for

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _slo(ctx: click.Context, param: click.Parameter, value: str | None) -> Slo | None:
    try:
        return None if value is None else parse_slo(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def target_options(command: _Command) -> _Command:
    """Where to fire, and from how many processes."""
    options = [
        click.option("--base-url", default="http://127.0.0.1:8000", show_default=True),
        click.option("--api-key", envvar="OPENAI_API_KEY", help="Sent as a bearer token."),
        click.option(
            "--timeout-s", type=float, default=600.0, show_default=True, help="Per request."
        ),
        click.option("--processes", type=click.IntRange(1), help="Default: as the rate needs."),
        click.option(
            "--slo",
            callback=_slo,
            metavar="ttft=S,tpot=S,e2e=S",
            help="What counts as good, for goodput.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("source")
@target_options
@source_options
@click.option(
    "--arrivals",
    type=click.Choice([OWN_TIMES, *ARRIVALS]),
    help="Default: poisson with --rate, else the source's own times.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests a second.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the arrival process.")
@click.option("--concurrency", type=click.IntRange(1), help="Closed loop with so many clients.")
@click.option("--limit", type=click.IntRange(1), help="Only the first requests of the source.")
@click.option("--flush/--no-flush", default=False, help="POST /flush_cache first.")
@click.option(
    "--pool-tokens", type=click.IntRange(1), help="Of all replicas together, for the bound B4."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Raw rows as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(
    source: str,
    base_url: str,
    api_key: str | None,
    timeout_s: float,
    processes: int | None,
    slo: Slo | None,
    trace_seed: int,
    pairs: tuple[str, ...],
    arrivals: str | None,
    rate: float | None,
    seed: int,
    concurrency: int | None,
    limit: int | None,
    flush: bool,
    pool_tokens: int | None,
    out: Path | None,
    as_json: bool,
    **words: Any,
) -> None:
    """Send the requests of SOURCE to a server: a trace, a trace file, or JSON Lines of
    {"timestamp": ms, "body": {...}}.

    Open loop: each request is sent at its time whatever became of the others, and its TTFT counts
    from that time. Without --rate the source's own times are kept. With --concurrency a closed loop.
    Exits with 1 if a request was not answered.
    """
    if concurrency is not None and (rate is not None or arrivals is not None):
        raise click.UsageError("a closed loop (--concurrency) has neither --rate nor --arrivals")
    closed = concurrency is not None
    if not closed:
        arrivals = arrivals or (OWN_TIMES if rate is None else "poisson")
    options = {**click.get_current_context().params, "arrivals": arrivals}
    config = {k: jsonable(v) for k, v in options.items() if k != "api_key"}
    loaded = load_source(source, limit, Wording(**words), seed=trace_seed, pairs=pairs)
    loaded = with_model(loaded, asyncio.run(served_models(base_url, api_key=api_key)))
    try:
        requests = (
            schedule(loaded.requests, arrivals, rate, seed)
            if arrivals is not None
            else at_once(loaded.requests)
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if flush:
        flush_or_fail(base_url, api_key)
    record = fire_record(
        requests,
        Target(base_url, api_key, timeout_s),
        config={**config, "notes": loaded.notes},
        concurrency=concurrency,
        processes=processes or (1 if concurrency else processes_for(rate)),
    )
    if out is not None:
        record.write(out)
    summary = summarize(
        record.rows, arrival_period_s=record.arrival_period_s, slo=slo, closed=closed
    )
    summary["bounds"] = source_bounds(loaded, record, pool_tokens)
    click.echo(json.dumps(summary) if as_json else table(summary))
    warn_if_late(summary, record)
    if not all(r.answered for r in record.rows):
        raise SystemExit(1)


def fire_record(
    requests: list[PlannedRequest],
    target: Target,
    *,
    config: dict[str, Any],
    concurrency: int | None,
    processes: int,
    label: str = "",
) -> RunRecord:
    """Fire under a progress bar and keep all of it. ClickException where the generator breaks."""
    started_unix_s = time.time()
    try:
        with progress(len(requests), label) as on_done:
            rows = fire(
                requests, target, concurrency=concurrency, processes=processes, on_done=on_done
            )
    except (WorkerFailed, ValueError) as error:
        raise click.ClickException(str(error)) from error
    config = {**config, "processes": processes, "cores": os.cpu_count()}
    return RunRecord.of(requests, rows, config=config, started_unix_s=started_unix_s)


def warn_if_late(summary: Mapping[str, Any], record: RunRecord) -> None:
    """Say on stderr that the generator was late, and what may help."""
    warning = late_warning(summary, record.processes, os.cpu_count() or 1)
    if warning is not None:
        click.echo(f"warning: {warning}", err=True)


def flush_or_fail(base_url: str, api_key: str | None) -> None:
    """Empty the server's caches. ClickException if it does not."""
    try:
        asyncio.run(flush_cache(base_url, api_key=api_key))
    except FlushFailed as error:
        raise click.ClickException(f"cannot flush the cache: {error}") from error


def jsonable(value: Any) -> Any:
    """An option's value as it goes into a run file."""
    if isinstance(value, Slo):
        return value.to_json()
    return str(value) if isinstance(value, Path) else value
