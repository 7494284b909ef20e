"""The plots of a comparison, each one SVG: arms against a measure, a dot a seed. Computes no figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.compare.tables import Result, by_load, hit_rate, ttft

_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "prism", "font.size": 9.0}
_NATIVE, _OURS = "C7", "C0"


def draw(results: Sequence[Result], order: Sequence[str], directory: Path) -> list[tuple[str, str]]:
    """Write all plots; (file name, what it shows). ImportError without matplotlib."""
    plots: list[tuple[str, str, Callable[[Any], None]]] = [
        (
            "ttft-p99.svg",
            "P99 TTFT by arm: a dot a seed, a bar the mean (measured), a cross the simulator's mean.",
            lambda figure: _arms(figure, results, order, ttft("p99"), "P99 TTFT (s)"),
        ),
        (
            "hit-rate.svg",
            "Hit rate by arm: a dot a seed, a bar the mean (measured), a cross the simulator's mean.",
            lambda figure: _arms(figure, results, order, hit_rate, "hit rate"),
        ),
        (
            "ttft-cdf.svg",
            "Share of requests with at most that TTFT, all seeds together (measured).",
            lambda figure: _cdfs(figure, results, order),
        ),
    ]
    for name, title, plot in plots:
        _save(directory / name, title, plot)
    return [(name, title) for name, title, _ in plots]


def _save(path: Path, title: str, plot: Callable[[Any], None]) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 3.4), layout="constrained")
        plot(figure)
        figure.savefig(path, format="svg", metadata={"Date": None, "Title": title})


def _arms(
    figure: Any,
    results: Sequence[Result],
    order: Sequence[str],
    read: Callable[[Result], float],
    label: str,
) -> None:
    loads = by_load(results)
    panels = figure.subplots(1, len(loads), sharey=True, squeeze=False)[0]
    for axes, (load, arms) in zip(panels, loads.items(), strict=True):
        names = [name for name in reversed(order) if arms.get(name)]
        for place, name in enumerate(names):
            _arm(axes, place, list(arms[name].values()), read)
        axes.set_yticks(range(len(names)), names)
        axes.set(title=f"{load:g} of the knee", xlabel=label, xlim=(0, None))
        axes.grid(alpha=0.3, axis="x")


def _arm(axes: Any, place: int, runs: Sequence[Result], read: Callable[[Result], float]) -> None:
    color = _NATIVE if runs[0]["arm"]["native"] else _OURS
    values = [read(run) for run in runs]
    axes.barh(place, float(np.mean(values)), color=color, alpha=0.4)
    axes.plot(values, [place] * len(values), "o", color=color, ms=3)
    told = [read(run["predicted"]) for run in runs if run.get("predicted")]
    if told:
        axes.plot(float(np.mean(told)), place, "x", color="k", ms=5)


def _cdfs(figure: Any, results: Sequence[Result], order: Sequence[str]) -> None:
    loads = by_load(results)
    panels = figure.subplots(1, len(loads), sharey=True, squeeze=False)[0]
    for axes, (load, arms) in zip(panels, loads.items(), strict=True):
        for name in order:
            if arms.get(name):
                _cdf(axes, name, arms[name])
        axes.set(title=f"{load:g} of the knee", xlabel="TTFT (s)", xlim=(0, None), ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[-1].legend(fontsize=6, loc="lower right")


def _cdf(axes: Any, name: str, by_seed: Mapping[int, Result]) -> None:
    values = np.sort([v for run in by_seed.values() for v in run["rows"]["ttft_s"]])
    shares = np.arange(1, len(values) + 1) / len(values)
    native = next(iter(by_seed.values()))["arm"]["native"]
    axes.plot(values, shares, "--" if native else "-", label=name, lw=1)
