"""`prism-loadgen trace`: make a trace file, describe a trace or a file of one. Replays nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from loadgen.arrivals import ARRIVALS
from loadgen.traces.base import TRACE_CLOCK, Trace, make_trace, trace_options
from loadgen.traces.describe import describe as describe_trace
from loadgen.traces.files import read_trace, write_trace
from loadgen.traces.plots import write_plots


def parse_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``name=value`` pairs; a value is JSON where it can be read as such, else text.

    UsageError for what is no pair. ("3" for an option that is text is the option's own concern.)
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise click.UsageError(f"an option is written name=value, not {pair!r}")
        try:
            options[name.replace("-", "_")] = json.loads(text)
        except ValueError:
            options[name.replace("-", "_")] = None if text == "None" else text
    return options


def load_trace(name: str, seed: int, count: int, options: dict[str, Any]) -> Trace:
    """A trace by name, or from a file where ``name`` is the path of one. ClickException otherwise."""
    try:
        if Path(name).is_file():
            if options:
                raise click.UsageError("a trace file has no options")
            return read_trace(Path(name))
        return make_trace(name, seed, count, **options)
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from error


@click.group("trace")
def trace() -> None:
    """Make and describe workload traces."""


_seed = click.option("--seed", type=int, default=0, show_default=True)
_count = click.option("--count", type=click.IntRange(0), default=2048, show_default=True)
_option = click.option(
    "-o", "--option", "pairs", multiple=True, metavar="NAME=VALUE", help="An option of the trace."
)


@trace.command("list")
def list_traces() -> None:
    """The traces and their options with defaults."""
    from loadgen.traces import TRACES

    for name in TRACES:
        summary = (TRACES[name].__doc__ or "").strip().splitlines()[0]
        click.echo(f"{name}: {summary}")
        for option, default in trace_options(name).items():
            click.echo(f"    {option}={json.dumps(default)}")


@trace.command("make")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
@_seed
@_count
@_option
@click.option(
    "--arrivals",
    type=click.Choice([*ARRIVALS, TRACE_CLOCK]),
    help="Times to write; default: the trace's own, or zero.",
)
@click.option("--rate", type=float, help="Requests/s of --arrivals.")
@click.option("--arrivals-seed", type=int, default=0, show_default=True)
def make(
    name: str,
    out: Path,
    seed: int,
    count: int,
    pairs: tuple[str, ...],
    arrivals: str | None,
    rate: float | None,
    arrivals_seed: int,
) -> None:
    """Write the trace NAME as JSON Lines: Mooncake's four keys, and segments."""
    made = load_trace(name, seed, count, parse_options(pairs))
    if rate is not None and arrivals is None:
        raise click.UsageError("--rate needs --arrivals")
    if arrivals is not None:
        try:
            made = made.timed(made.arrivals(arrivals, rate, arrivals_seed))
        except ValueError as error:
            raise click.ClickException(str(error)) from error
    write_trace(made, out)
    click.echo(f"{out}: {len(made.requests)} requests of {made.name}, seed {made.seed}")
    for note in made.notes:
        click.echo(f"note: {note}")


@trace.command("describe")
@click.argument("name")
@_seed
@_count
@_option
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all of it here.")
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="Draw PNGs there.")
def describe(
    name: str,
    seed: int,
    count: int,
    pairs: tuple[str, ...],
    json_path: Path | None,
    plots: Path | None,
) -> None:
    """Lengths, sharing and skew of the trace NAME, or of a trace file."""
    described = load_trace(name, seed, count, parse_options(pairs))
    report = describe_trace(described)
    click.echo(render(report))
    if json_path is not None:
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if plots is not None:
        for path in write_plots(described, plots):
            click.echo(f"wrote {path}")


def render(report: dict[str, Any]) -> str:
    """What ``describe`` prints of its report."""
    lines = [f"{report['trace']}, seed {report['seed']}: {report['requests']} requests"]
    if report["sessions"]:
        lines[0] += f" of {report['sessions']} sessions"
    lines += [f"  note: {note}" for note in report["notes"]]
    columns = ("mean", "min", "p50", "p90", "p99", "max")
    lines.append(f"{'':<18}" + "".join(f"{column:>10}" for column in columns))
    for name, row in report["lengths"].items():
        cells = "".join(f"{np.round(row[column], 1):>10,.1f}" for column in columns)
        lines.append(f"{name:<18}{cells}")
    for title in ("sharing", "skew", "key_portion"):
        lines.append(title)
        lines += [f"  {name:<28}{value:>12,.3f}" for name, value in report[title].items()]
    return "\n".join(lines)
