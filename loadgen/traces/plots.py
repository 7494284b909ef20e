"""Pictures of a trace, as PNG files. What they show is computed in ``describe`` or beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from loadgen.traces.base import Trace
from loadgen.traces.describe import segment_uses, sharing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = 16
"""Into how many stretches of requests the course of sharing is divided."""


def write_plots(trace: Trace, directory: Path) -> list[Path]:
    """Lengths, skew, sharing over the course of the trace and, where it has times, arrivals.

    Returns the files. Raises ClickException where matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise click.ClickException(
            "plots need matplotlib: pip install prism-ray[loadgen]"
        ) from error
    directory.mkdir(parents=True, exist_ok=True)
    drawings = {"lengths": _lengths, "skew": _skew, "sharing": _sharing}
    if any(r.arrival_s for r in trace.requests):
        drawings["arrivals"] = _arrivals
    files: list[Path] = []
    for name, draw in drawings.items():
        figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        draw(axes, trace)
        axes.set_title(f"{trace.name}, seed {trace.seed}")
        path = directory / f"{trace.name}-{name}.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        files.append(path)
    return files


def _lengths(axes: Axes, trace: Trace) -> None:
    for label, values in (
        ("prompt", [r.skeleton.prompt_tokens for r in trace.requests]),
        ("output", [r.output_tokens for r in trace.requests]),
    ):
        ordered = np.sort(values)
        axes.plot(ordered, np.arange(1, len(ordered) + 1) / max(len(ordered), 1), label=label)
    axes.set_xscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("share of requests with at most that many")
    axes.legend()


def _skew(axes: Axes, trace: Trace) -> None:
    uses = sorted(segment_uses(trace.requests).values(), reverse=True)
    axes.loglog(np.arange(1, len(uses) + 1), uses, marker=".", linestyle="none")
    axes.set_xlabel("rank of segment")
    axes.set_ylabel("requests that contain it")


def _sharing(axes: Axes, trace: Trace) -> None:
    """Each point is over all requests up to there."""
    total = len(trace.requests)
    ends = sorted({max(1, total * part // PARTS) for part in range(1, PARTS + 1)}) if total else []
    rows = [sharing(trace.requests[:end]) for end in ends]
    for key in ("anywhere_repeated", "prefix_repeated"):
        axes.plot(ends, [row[key] for row in rows], label=key.replace("_", " "))
    axes.set_ylim(0, 1)
    axes.set_xlabel("requests")
    axes.set_ylabel("share of prompt tokens")
    axes.legend()


def _arrivals(axes: Axes, trace: Trace) -> None:
    times = np.array([r.arrival_s for r in trace.requests])
    axes.hist(times, bins=max(10, min(200, len(times) // 10)))
    axes.set_xlabel("seconds")
    axes.set_ylabel("arrivals")
