"""The figures of a reproduction as PNG files, every one marked as simulated. Computes nothing new."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.reproduce.experiments import LABELS as ARMS
from loadgen.reproduce.experiments import Experiment
from loadgen.reproduce.tables import Row
from loadgen.reproduce.verdicts import ends
from loadgen.sweep.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {
    "ttft_p99_s": "P99 TTFT (s)",
    "hit_rate": "hit rate",
    "latency_p99_s": "P99 latency (s)",
    "latency_mean_s": "mean latency (s)",
}
_COLOURS = {
    "prism": "C3", "qas": "C0", "front-alignment": "C2", "contextpilot": "C1", "fcfs": "C7",
    "fcfs-refresh": "C7", "k-lpm": "C4",
}  # fmt: skip
_OTHERS = ("C5", "C6", "C8", "C9", "C1", "C2", "C4")
_DPI = 72
_NAME_CHARS = 34
_LOG_FROM = 8.0


def draw(experiment: Experiment, table: Sequence[Row], directory: Path) -> list[Path]:
    """One file a metric; none where nothing ran. ClickException where matplotlib is not installed."""
    if not table:
        return []
    metrics = ["ttft_p99_s", "hit_rate"]
    if experiment.name == "preble":
        metrics = ["latency_mean_s", "latency_p99_s"]
    files = []
    for metric in metrics:
        shown = [row for row in table if metric in row.values]
        if shown:
            file = directory / f"{experiment.name}.{metric.removesuffix('_s')}.png"
            _draw(experiment, shown, metric, file)
            files.append(file)
    return files


def _draw(experiment: Experiment, table: Sequence[Row], metric: str, file: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException(
            "a reproduction's plots need matplotlib: pip install prism-ray[loadgen]"
        ) from error
    settings = list(dict.fromkeys(row.setting for row in table))
    rates = {row.qps for row in table}
    panels = settings if len(rates) > 1 and len(settings) > 1 else [""]
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns + 2.2, 3.1 * lines), layout="constrained", dpi=_DPI)
    all_axes: Any = figure.subplots(lines, columns, squeeze=False)
    flat = list(all_axes.flat)
    for axes, panel in zip(flat, panels, strict=False):
        part = [row for row in table if not panel or row.setting == panel]
        _panel(axes, part, metric, panel)
    for axes in flat[len(panels) :]:
        axes.remove()
    lines_shown = {
        label: handle
        for axes in flat[: len(panels)]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if lines_shown:
        figure.legend(
            lines_shown.values(), lines_shown.keys(), loc="outside right center", fontsize=7
        )
    figure.suptitle(
        f"{experiment.title}: {LABELS[metric]} (simulated)", fontsize=10, x=0.01, ha="left"
    )
    figure.savefig(file, metadata={"Software": None})


def _panel(axes: Axes, table: Sequence[Row], metric: str, panel: str) -> None:
    rates = sorted({row.qps for row in table})
    settings = list(dict.fromkeys(row.setting for row in table))
    arms = list(dict.fromkeys(row.arm for row in table))
    axes.set_title(panel, fontsize=9)
    if len(rates) == len(settings) == 1:
        _bars(axes, table, metric)
        return
    places: dict[Any, float] = {s: float(n) for n, s in enumerate(settings)}
    for number, arm in enumerate(arms):
        mine = [row for row in table if row.arm == arm]
        x = [row.qps if len(rates) > 1 else places[row.setting] for row in mine]
        colour = _COLOURS.get(arm, _OTHERS[number % len(_OTHERS)])
        _line(axes, x, [row.values[metric] for row in mine], colour, _short(arm))
    if metric == "ttft_p99_s" and len(rates) > 1 and "prism" in arms:
        mine = [r for r in table if r.arm == "prism" and "least_p99_s" in r.values]
        least = [r.values["least_p99_s"].mean for r in mine]
        axes.plot([r.qps for r in mine], least, ":", color="black", label="least possible (prism)")
    if len(rates) > 1:
        axes.set_xlabel("requests/s")
    else:
        axes.set_xticks(list(places.values()), list(places), fontsize=7, rotation=12)
    if metric != "hit_rate":
        _scale(axes, [row.values[metric].mean for row in table])
    axes.grid(alpha=0.3)


def _line(
    axes: Axes, x: Sequence[float], values: Sequence[Interval], colour: str, label: str
) -> None:
    means = [value.mean for value in values]
    below = [value.mean - max(ends(value)[0], value.mean * 0.02) for value in values]
    above = [ends(value)[1] - value.mean for value in values]
    axes.errorbar(
        x,
        means,
        yerr=[below, above],
        color=colour,
        marker="o",
        ms=3,
        capsize=2,
        lw=1.2,
        label=label,
    )


def _bars(axes: Axes, table: Sequence[Row], metric: str) -> None:
    values = [row.values[metric] for row in table]
    places = list(range(len(table)))[::-1]
    errors = [[v.mean - ends(v)[0] for v in values], [ends(v)[1] - v.mean for v in values]]
    colours = [_COLOURS.get(row.arm, "C0") for row in table]
    axes.barh(places, [v.mean for v in values], xerr=errors, color=colours, capsize=2, height=0.6)
    axes.set_yticks(places, [_short(row.arm) for row in table], fontsize=7)
    axes.grid(alpha=0.3, axis="x")


def _scale(axes: Axes, values: Sequence[float]) -> None:
    positive = [value for value in values if value > 0]
    if positive and max(positive) > _LOG_FROM * min(positive):
        axes.set_yscale("log")


def _short(arm: str) -> str:
    text = ARMS.get(arm) or arm.replace("policy.", "")
    return text if len(text) <= _NAME_CHARS else text[: _NAME_CHARS - 1] + "…"
