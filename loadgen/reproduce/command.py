"""`prism-loadgen reproduce`: runs what is missing, then writes the page from what is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from loadgen.reproduce.experiments import EXPERIMENTS, experiments
from loadgen.reproduce.page import write_page
from loadgen.reproduce.results import Results
from loadgen.reproduce.runs import QUICK_REQUESTS, Todo, run_all, todo
from loadgen.simulate import UnknownKnee


@click.command("reproduce")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reproduction"),
    show_default=True,
    help="Directory of runs, plots and the page; runs that are there are kept.",
)
@click.option("--quick", is_flag=True, help="Short traces, two seeds: does it work at all?")
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([e.name for e in EXPERIMENTS]),
    metavar="EXPERIMENT",
    help="Run this one; repeat. The page is of all that ran.",
)
@click.option("--minutes", type=click.FloatRange(0), help="Start no run after so long.")
def reproduce(out: Path, quick: bool, names: tuple[str, ...], minutes: float | None) -> None:
    """Make the papers' tables and figures again, with verdicts. Simulated, never measured.

    Writes DIR/index.html, DIR/plots, CSV files, and one JSON a run below DIR/runs. All of it takes
    about an hour of one core; it can be stopped at any time and goes on where it was, from DIR/runs.csv
    alone, too.
    """
    every = experiments(quick=quick)
    requests_max = QUICK_REQUESTS if quick else None
    try:
        chosen = [e for e in every if not names or e.name in names]
        kept = Results.read(out)
        _run([e for e in todo(out, chosen, requests_max) if not _there(e, kept)], minutes)
        results = Results.read(out)
        missing = sum(not _there(entry, results) for entry in todo(out, every, requests_max))
        page = write_page(out, every, missing=missing, quick=quick)
    except (UnknownKnee, ValueError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"simulated: {page} ({missing} runs missing)")


def _there(entry: Todo, results: Results) -> bool:
    step = entry.step
    spec = step.spec
    return results.has(entry.directory.name, step.arm, spec.qps or 0.0, spec.seed, spec.requests)


def _run(entries: Sequence[Todo], minutes: float | None) -> None:
    """Settings whose data set is not there are left out, and said so."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    with click.progressbar(length=len(entries), label="runs", file=sys.stderr) as bar:

        def done(entry: Todo, ran: bool) -> None:
            bar.update(1)

        without = run_all(entries, lambda: end is None or time.monotonic() < end, done)
    for setting, reason in sorted(without.items()):
        click.echo(f"{setting} left out: {reason}", err=True)
