"""The plots of a measurement, each as one inline SVG. What they show is computed in ``points``."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from loadgen.metrics import percentile
from loadgen.report.points import Load, Point
from loadgen.rows import RequestRow
from loadgen.saturation import under_way

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUANTILES = np.linspace(0, 100, 201)
BOUNDS = {
    "b0": "bound B0: as written, endless pool",
    "b1": "bound B1: any order, endless pool",
    "b4": "bound B4: any order, this pool",
}
_BALANCE_STEPS = 50
_STEP_SAMPLES = 20
_LOG_FROM = 3.0
"""A logarithmic axis only where the largest value is so many times the smallest."""
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "prism", "font.size": 9.0}


def draw(by_load: Sequence[Load]) -> list[tuple[str, str, str]]:
    """(title, what it shows, SVG) of each plot that there are values for.

    ClickException where matplotlib is not installed.
    """
    clean = [load for load in by_load if not load.saturated] or list(by_load)
    x = "requests/s" if by_load[0].points[0].rate is not None else "clients"
    middle = clean[-1].points[0]
    which = "of all" if clean[-1].saturated else "that is not past the knee"
    plots: list[tuple[str, str, Callable[[Axes], bool]]] = [
        (
            "TTFT against load",
            "From scheduled arrival to first token. Lines are means over seeds; hollow points are past "
            "the knee and belong to no mean.",
            lambda axes: _against_load(axes, by_load, x, ("ttft_s",), 1.0, "TTFT (s)"),
        ),
        (
            "Distribution of TTFT",
            "Share of answers with at most that TTFT, all seeds of a load together.",
            lambda axes: _cdf(axes, clean, lambda r: [r.ttft_s], "TTFT (s)"),
        ),
        (
            "Distribution of inter-token latency",
            "Gaps between chunks with content.",
            lambda axes: _cdf(axes, clean, lambda r: r.gaps_s, "ITL (s)"),
        ),
        (
            "Distribution of end-to-end latency",
            "From scheduled arrival to the end of the answer.",
            lambda axes: _cdf(axes, clean, lambda r: [r.latency_s], "latency (s)"),
        ),
        (
            "Hit rate against load",
            "Cached prompt tokens over all, by the server's usage, from the first request on; bounds "
            "are of the trace's own lengths, which a server's template adds to.",
            lambda axes: _hit_rate(axes, by_load, x),
        ),
        (
            "Goodput against load",
            "Answers a second that keep the SLO.",
            lambda axes: _goodput(axes, by_load, x),
        ),
        (
            "Requests under way by replica",
            f"Means over a fiftieth of the run, at {middle.label}, seed {middle.seed}: the first seed "
            f"of the highest load {which}.",
            lambda axes: _balance(axes, middle),
        ),
    ]
    drawn = [(title, says, _svg(plot, title)) for title, says, plot in plots]
    return [(title, says, svg) for title, says, svg in drawn if svg is not None]


def _svg(plot: Callable[[Axes], bool], title: str) -> str | None:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException(
            "a report needs matplotlib: pip install prism-ray[loadgen]"
        ) from error
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes: Any = figure.add_subplot()
        if not plot(axes):
            return None
        axes.grid(alpha=0.3)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Title": title})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _against_load(
    axes: Axes, by_load: Sequence[Load], x: str, path: tuple[str], scale: float, label: str
) -> bool:
    any_value = False
    for number, percent in enumerate(("p50", "p99")):
        color = f"C{number}"
        for load in by_load:
            values = [
                scale * p.summary[path[0]][percent] for p in load.points if p.summary[path[0]]
            ]
            any_value = any_value or bool(values)
            face = "none" if load.saturated else color
            axes.plot(
                [load.load] * len(values), values, "o", markerfacecolor=face, color=color, ms=4
            )
        line = [
            (load.load, scale * load.means[f"ttft_{percent}_s"][0])
            for load in by_load
            if load.means is not None and f"ttft_{percent}_s" in load.means
        ]
        if line:
            axes.plot(*zip(*line, strict=True), color=color, label=percent.upper())
    axes.set(xlabel=x, ylabel=label, yscale="log")
    if axes.lines and any(not str(line.get_label()).startswith("_") for line in axes.lines):
        axes.legend()
    return any_value


def _cdf(
    axes: Axes,
    clean: Sequence[Load],
    values_of: Callable[[RequestRow], Sequence[float | None]],
    label: str,
) -> bool:
    seen: list[float] = []
    for load in clean:
        rows = [row for point in load.points for row in point.measured if row.answered]
        values = [v for row in rows for v in values_of(row) if v is not None]
        if not values:
            continue
        seen += values
        axes.plot([percentile(values, q) for q in QUANTILES], QUANTILES / 100, label=load.label)
    axes.set(xlabel=label, ylabel="share", ylim=(0, 1))
    if seen:
        wide = min(seen) > 0 and max(seen) > _LOG_FROM * min(seen)
        axes.set_xscale("log" if wide else "linear")
        axes.legend()
    return bool(seen)


def _hit_rate(axes: Axes, by_load: Sequence[Load], x: str) -> bool:
    any_value = False
    for load in by_load:
        values = [p.hit_rate_from_start for p in load.points if p.hit_rate_from_start is not None]
        any_value = any_value or bool(values)
        face = "none" if load.saturated else "C0"
        axes.plot([load.load] * len(values), values, "o", markerfacecolor=face, color="C0", ms=4)
    for number, (name, label) in enumerate(BOUNDS.items(), start=1):
        line = [(load.load, b) for load in by_load if (b := load.bound(name)) is not None]
        if line:
            axes.plot(*zip(*line, strict=True), "--", marker="_", color=f"C{number}", label=label)
            axes.legend()
    axes.set(xlabel=x, ylabel="hit rate", ylim=(0, 1))
    return any_value


def _goodput(axes: Axes, by_load: Sequence[Load], x: str) -> bool:
    any_value = False
    for load in by_load:
        values = [p.summary["goodput"]["per_s"] for p in load.points if p.summary["goodput"]]
        known = [v for v in values if v is not None]
        any_value = any_value or bool(known)
        face = "none" if load.saturated else "C2"
        axes.plot([load.load] * len(known), known, "o", markerfacecolor=face, color="C2", ms=4)
    axes.set(xlabel=x, ylabel="good answers/s")
    axes.set_ylim(bottom=0)
    return any_value


def _balance(axes: Axes, point: Point) -> bool:
    rows = [r for r in point.record.rows if r.replica is not None and r.ended_s is not None]
    if not rows:
        return False
    last_s = max(r.ended_s or 0.0 for r in rows)
    times = np.linspace(0.0, last_s, _BALANCE_STEPS * _STEP_SAMPLES, endpoint=False)
    for replica in sorted({r.replica or "" for r in rows}):
        steps = under_way([r for r in rows if r.replica == replica], times)
        means = steps.reshape(_BALANCE_STEPS, _STEP_SAMPLES).mean(axis=1)
        axes.plot(times[::_STEP_SAMPLES], means, label=replica, drawstyle="steps-post")
    axes.set(xlabel="seconds of the run", ylabel="requests under way")
    axes.set_ylim(bottom=0)
    axes.legend()
    return True
