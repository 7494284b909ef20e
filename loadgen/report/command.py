"""`prism-loadgen report`: make the report of a measurement anew, from its run files."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.report.page import write_report
from loadgen.report.points import read_points
from loadgen.slo import parse_slo


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--slo", metavar="ttft=S,tpot=S,e2e=S", help="Another one than the runs'.")
def report(directory: Path, slo: str | None) -> None:
    """Write summary.json, points.csv, requests.csv and report.html of a measurement's DIRECTORY."""
    try:
        points = read_points(directory, None if slo is None else parse_slo(slo))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"wrote {write_report(points, directory)}")
