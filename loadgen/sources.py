"""Where requests come from: a file of requests, a trace file, or a trace by name; and when they are due.

Also the options that say so on a command line. Sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from loadgen.arrivals import ARRIVALS
from loadgen.bounds import Prompt, bounds_beside
from loadgen.prompts import STYLES, TEXTS, NoTexts, Style, Texts, plan_requests
from loadgen.requests_file import read_requests
from loadgen.rows import PlannedRequest, RunRecord
from loadgen.trace_cmd import load_trace, parse_options
from loadgen.traces.base import Trace

OWN_TIMES = "file"
"""The arrival process that keeps the source's own times."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Source:
    """Requests at the source's own times. ``trace`` is None where they came as bodies."""

    name: str
    requests: tuple[PlannedRequest, ...]
    trace: Trace | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wording:
    """How bodies are written: style and texts of a trace's prompts, and what is laid over any body."""

    style: Style = "segments"
    texts: Texts = "real"
    ignore_eos: bool = False
    model: str | None = None
    max_tokens: int | None = None
    report: bool = False


def source_options(command: _Command) -> _Command:
    """The options that ``load_source`` takes, for a click command."""
    options = [
        click.option("--trace-seed", type=int, default=0, show_default=True, help="Of a trace."),
        click.option(
            "-o", "--option", "pairs", multiple=True, metavar="NAME=VALUE", help="Of a trace."
        ),
        click.option(
            "--style",
            type=click.Choice(STYLES),
            default="segments",
            show_default=True,
            help="A trace's prompts: with prism marks, as unmarked content parts, as one string.",
        ),
        click.option(
            "--texts",
            type=click.Choice(TEXTS),
            default="real",
            show_default=True,
            help="A trace's own texts, or made ones of the same lengths and sharing.",
        ),
        click.option("--ignore-eos", is_flag=True, help="Ask for exactly a trace's output length."),
        click.option("--model", help="Replaces the bodies' model."),
        click.option("--max-tokens", type=click.IntRange(1), help="Replaces their max_tokens."),
        click.option(
            "--report/--no-report", default=False, help="Ask for the prism report object."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def load_source(
    name: str, count: int | None, wording: Wording, *, seed: int = 0, pairs: tuple[str, ...] = ()
) -> Source:
    """The first ``count`` requests of ``name``. ClickException for what cannot be read or made.

    A file whose lines have a "body" is a file of requests; any other file is a trace file.
    """
    path = Path(name)
    try:
        if path.is_file() and _has_bodies(path):
            requests = read_requests(path)[:count]
            source = Source(path.name, tuple(requests))
        else:
            trace = load_trace(name, seed, 2048 if count is None else count, parse_options(pairs))
            trace = replace(trace, requests=trace.requests[:count])
            requests, notes = plan_requests(
                trace, style=wording.style, texts=wording.texts, ignore_eos=wording.ignore_eos
            )
            source = Source(trace.name, tuple(requests), trace, notes)
    except NoTexts as error:
        raise click.ClickException(f"{error}: --texts made") from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    worded = [replace(r, body=prepare_body(r.body, wording)) for r in source.requests]
    return replace(source, requests=tuple(worded))


def with_model(source: Source, served: Sequence[str]) -> Source:
    """A trace's bodies with the first model that a server lists, where they name none.

    Many servers ask for a name. Bodies that came as such are sent as they are.
    """
    if source.trace is None or not served or any("model" in r.body for r in source.requests):
        return source
    named = [replace(r, body={**r.body, "model": served[0]}) for r in source.requests]
    note = f"asked of {served[0]}, the first of {len(served)} models that the server lists"
    notes = (*source.notes, *((note,) if len(served) > 1 else ()))
    return replace(source, requests=tuple(named), notes=notes)


def source_bounds(
    source: Source, record: RunRecord, pool_tokens: int | None
) -> dict[str, float | None]:
    """Bounds on the hit rate of a run of the source (``bounds_beside``), as shares of the trace's own
    prompt tokens; nothing for bodies, whose tokens are the server's."""
    if source.trace is None:
        return {}
    requests = source.trace.requests
    prompts = [
        Prompt(request.prompt(), row.scheduled_s, request.output)
        for request, row in zip(requests, record.rows, strict=True)
    ]
    ends = [r.ended_s - r.scheduled_s for r in record.rows if r.ended_s is not None]
    return bounds_beside(
        prompts,
        movable=any(request.skeleton.runs for request in requests),
        pool_tokens=pool_tokens,
        wait_s=max(ends, default=None),
    )


def _has_bodies(path: Path) -> bool:
    """Whether the first line is one of a file of requests; broken lines are for its reader to name."""
    with path.open(encoding="utf-8") as file:
        first = next((line for line in file if line.strip()), "")
    try:
        value = json.loads(first)
    except ValueError:
        return True
    return not (isinstance(value, dict) and "input_length" in value)


def prepare_body(body: Mapping[str, Any], wording: Wording) -> dict[str, Any]:
    """The body as it is sent: streamed with usage unless it says otherwise, options laid over it."""
    ready: dict[str, Any] = {"stream": True, **body}
    if ready["stream"]:
        ready["stream_options"] = {"include_usage": True, **(body.get("stream_options") or {})}
    if wording.model is not None:
        ready["model"] = wording.model
    if wording.max_tokens is not None:
        ready["max_tokens"] = wording.max_tokens
    if wording.report:
        ready["prism"] = {"report": True, **(body.get("prism") or {})}
    return ready


def at_once(requests: Sequence[PlannedRequest]) -> list[PlannedRequest]:
    """All due at the start: a closed loop has no times of its own."""
    return [replace(r, at_s=0.0) for r in requests]


def schedule(
    requests: Sequence[PlannedRequest], arrivals: str, rate: float | None, seed: int
) -> list[PlannedRequest]:
    """Arrival times by name: "file" keeps the source's, scaled to ``rate`` on average if one is given.

    ValueError where a rate is needed and missing, or where the source's times cannot be scaled.
    """
    if arrivals == OWN_TIMES:
        if rate is None:
            return list(requests)
        last_s = max((r.at_s for r in requests), default=0.0)
        if last_s == 0:
            raise ValueError("the file has no timestamps to scale: choose an arrival process")
        factor = (len(requests) - 1) / rate / last_s
        return [replace(r, at_s=r.at_s * factor) for r in requests]
    if rate is None:
        raise ValueError(f"{arrivals} arrivals need --rate")
    times = ARRIVALS[arrivals](len(requests), rate, np.random.default_rng(seed))
    return [replace(r, at_s=t) for r, t in zip(requests, times, strict=True)]
