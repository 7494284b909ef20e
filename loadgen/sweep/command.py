"""`prism-loadgen sweep`: find a knee, run policies x loads x seeds, put the runs in a table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from loadgen.checkout import git_commit
from loadgen.simulate import SimSpec, UnknownKnee, kept_knee, parse_settings
from loadgen.simulate.knees import KNEES_FILE, keep_knee
from loadgen.sweep import (
    Arm,
    Step,
    as_csv,
    as_markdown,
    find_knee,
    load_results,
    parse_arm,
    peers,
    run_steps,
    steps,
    tabulate,
)
from loadgen.sweep.latencies import latency_markdown, latency_rows
from loadgen.sweep.plateau import fit_new_token_s, plateau
from loadgen.sweep.spec_file import Comparison, read_comparisons
from prism_ray.scheduling import POLICIES

Command = TypeVar("Command", bound=Callable[..., Any])


def _base_options(seeds: int) -> Callable[[Command], Command]:
    """Options that every run of a sweep shares, with a default number of seeds."""
    options = (
        click.option("--trace", default="zipf_hotspot", show_default=True),
        click.option("--profile", default="a800-qwen3-4b", show_default=True),
        click.option("--replicas", type=click.IntRange(1), default=1, show_default=True),
        click.option("--placement", help="[default: single; least-loaded for several replicas]"),
        click.option("--requests", type=click.IntRange(1), default=2048, show_default=True),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE"),
        click.option(
            "--arm",
            "arms",
            multiple=True,
            metavar="POLICY[/RETENTION] [KEY=VALUE ...]",
            help="Repeat for every arm.  [default: every registered policy; for a knee, the peers]",
        ),
        click.option("--seeds", type=click.IntRange(1), default=seeds, show_default=True),
        click.option("--first-seed", type=int, default=0, show_default=True),
    )

    def with_options(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


def _base(
    trace: str,
    profile: str,
    replicas: int,
    placement: str | None,
    requests: int,
    settings: tuple[str, ...],
) -> SimSpec:
    spec = SimSpec(
        trace=trace, profile=profile, replicas=replicas, placement=placement, requests=requests
    )
    return spec.with_options(parse_settings(settings))


@click.group("sweep")
def sweep() -> None:
    """Compare policies in virtual time. Every figure is simulated, never measured."""


@sweep.command("knee")
@_base_options(seeds=8)
@click.option("--keep", is_flag=True, help="Write the knee into the file of kept knees.")
@click.option("--file", type=click.Path(path_type=Path), default=KNEES_FILE, help="That file.")
def knee(
    arms: tuple[str, ...], seeds: int, first_seed: int, keep: bool, file: Path, **base: Any
) -> None:
    """Find the largest rate on a 5% grid at which the best peer answers 97% of arrivals in time.

    Several replicas serve a trace as many times as long: --requests is for each.
    """
    try:
        spec = _base(**base)
        spec = replace(spec, requests=spec.requests * spec.replicas)
        chosen = [parse_arm(arm) for arm in arms] or peers()
        found = find_knee(spec, chosen, range(first_seed, first_seed + seeds))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(
        f"simulated knee of {spec.trace}, {spec.profile} x{spec.replicas}: {found.qps:.3f}/s"
    )
    for name, share in sorted(found.shares.items(), key=lambda item: -item[1]):
        click.echo(f"  {name}: {share:.2%} answered in the arrival period at the knee")
    if keep:
        kept = {
            "qps": found.qps,
            "arm": found.arm,
            "placement": spec.filled().placement,
            "seeds": seeds,
            "requests": spec.requests,
            "git_commit": git_commit(),
        }
        keep_knee(spec.trace, spec.profile, spec.replicas, kept, spec.trace_options, file)


@sweep.command("run")
@_base_options(seeds=5)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory of runs.")
@click.option("--load", "loads", type=float, multiple=True, help="A share of the knee; repeat.")
@click.option("--qps", "rates", type=float, multiple=True, help="Requests/s; repeat.")
@click.option("--knee", "knee_qps", type=float, help="Requests/s.  [default: the kept one]")
@click.option("--baseline", help="Arm that the others are compared with.  [default: the first]")
def run(
    arms: tuple[str, ...],
    seeds: int,
    first_seed: int,
    out: Path,
    loads: tuple[float, ...],
    rates: tuple[float, ...],
    knee_qps: float | None,
    baseline: str | None,
    **base: Any,
) -> None:
    """Run every arm at every load and seed, then show the table. Runs that are there are kept."""
    try:
        spec = _base(**base)
        if loads and knee_qps is None:
            knee_qps = kept_knee(spec.trace, spec.profile, spec.replicas, spec.trace_options)
        chosen = [parse_arm(arm) for arm in arms] or _everybody()
        todo = list(
            steps(
                spec,
                chosen,
                range(first_seed, first_seed + seeds),
                knee_qps=knee_qps,
                loads=loads,
                rates=rates,
            )
        )
        if not todo:
            raise click.ClickException("give at least one --load or --qps")
        with click.progressbar(length=len(todo), label="runs", file=sys.stderr) as bar:

            def done(step: Step, ran: bool) -> None:
                bar.update(1)

            run_steps(out, todo, done=done)
        names = {step.file_name for step in todo}
        _show(out, names, baseline or chosen[0].name, csv_file=None)
    except (UnknownKnee, ValueError) as error:
        raise click.ClickException(str(error)) from None


@sweep.command("file")
@click.argument("spec_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory of runs.")
@click.option("--only", multiple=True, metavar="NAME", help="Comparisons by name; repeat.")
@click.option("--load", "loads", type=float, multiple=True, help="Of the file's loads; repeat.")
@click.option(
    "--arm", "arms", multiple=True, help="Of the file's arms, beside the baseline; repeat."
)
@click.option("--seconds", type=float, help="Start no new run after so many seconds.")
def run_file(
    spec_file: Path,
    out: Path,
    only: tuple[str, ...],
    loads: tuple[float, ...],
    arms: tuple[str, ...],
    seconds: float | None,
) -> None:
    """Run the comparisons of a file (see loadgen/sweep/specs), then show latencies against its baseline.

    Runs that are there are kept: what was stopped, by --seconds or otherwise, goes on where it was.
    """
    try:
        chosen = [c for c in read_comparisons(spec_file) if not only or c.name in only]
        if not chosen:
            raise click.ClickException(f"{spec_file} has no comparison of these names")
        until_s = None if seconds is None else time.monotonic() + seconds
        for comparison in chosen:
            wanted = {*arms, comparison.baseline}
            todo = [
                step
                for step in comparison.todo
                if (not loads or step.load in loads) and (not arms or step.arm in wanted)
            ]
            for step in todo:
                if until_s is not None and time.monotonic() > until_s:
                    raise click.ClickException(
                        "not everything was run: go on with the same command"
                    )
                run_steps(out / comparison.name, [step])
            _show_latencies(out, comparison, {step.file_name for step in todo})
    except (UnknownKnee, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _show_latencies(out: Path, comparison: Comparison, names: set[str]) -> None:
    results = load_results(out / comparison.name, names)
    commits = sorted({str(result["git_commit"]) for result in results})
    click.echo(
        f"\n{comparison.name}: simulated, against {comparison.baseline}; {', '.join(commits)}\n"
    )
    click.echo(latency_markdown(latency_rows(results, comparison.baseline)), nl=False)


def _everybody() -> list[Arm]:
    return [Arm(name, {"policy": name}) for name in POLICIES]


@sweep.command("table")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--baseline", help="Arm that the others are compared with.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write all figures here.")
def table(directory: Path, baseline: str | None, csv_file: Path | None) -> None:
    """Show the runs of a directory; refuses runs that did not serve the same."""
    try:
        _show(directory, None, baseline, csv_file)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _show(
    directory: Path, names: set[str] | None, baseline: str | None, csv_file: Path | None
) -> None:
    results = load_results(directory, names)
    rows = tabulate(results, baseline)
    commits = sorted({str(result["git_commit"]) for result in results})
    click.echo("Simulated. Seconds; intervals are 95%, paired by seed.")
    click.echo(f"Commit{'s' * (len(commits) > 1)}: {', '.join(commits)}\n")
    click.echo(as_markdown(rows), nl=False)
    if csv_file is not None:
        csv_file.write_text(as_csv(rows), encoding="utf-8")


@sweep.command("plateau")
@_base_options(seeds=3)
@click.option("--qps", type=float, required=True, help="A rate that cannot be kept up with.")
@click.option("--target", type=float, help="Fit the profile to so many uncached tokens/s.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the fitted profile here.")
def plateau_command(
    arms: tuple[str, ...],
    seeds: int,
    first_seed: int,
    qps: float,
    target: float | None,
    out: Path | None,
    **base: Any,
) -> None:
    """Uncached prompt tokens/s under overload; with --target, the cost of a token that leads to it."""
    try:
        (arm,) = [parse_arm(text) for text in arms] or [parse_arm("qas")]
        spec = replace(arm.spec(_base(**base)), qps=qps)
        chosen = range(first_seed, first_seed + seeds)
        if target is None:
            click.echo(f"simulated plateau: {plateau(spec, chosen):.0f} uncached tokens/s")
            return
        fitted = fit_new_token_s(spec, target, chosen)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    text = json.dumps(fitted.to_json(), indent=2)
    click.echo(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
