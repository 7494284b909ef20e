"""A reproduction as one page with its plots and CSV files. What it says is computed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from loadgen.reproduce.claims import Claim, load_claims
from loadgen.reproduce.experiments import COMPARED, LABELS, MAIN, SCREENING, Experiment
from loadgen.reproduce.kept import RUNS_CSV, write_runs
from loadgen.reproduce.measures import Figure
from loadgen.reproduce.plots import draw
from loadgen.reproduce.results import Results
from loadgen.reproduce.settings import SETTINGS
from loadgen.reproduce.tables import (
    Row,
    rows,
    screened,
    write_claims,
    write_results,
)
from loadgen.reproduce.verdicts import Answer, Verdict, ends, judge_all, number, show
from loadgen.sweep.intervals import Interval

SOURCES = {
    "prism": "The PRISM paper's claims",
    "preble": "The Preble paper's claims",
    "ours": "Our own targets for prism",
}
PLOTS = "plots"


def write_page(
    out: Path, experiments: Sequence[Experiment], *, missing: int = 0, quick: bool = False
) -> Path:
    """``index.html``, ``plots/``, ``results.csv``, ``claims.csv`` and ``runs.csv``; the page's path.

    ``missing``: runs that are not there yet. Raises Incomparable for runs that did not serve the same.
    """
    results = Results.read(out)
    verdicts = judge_all(load_claims(), results, quick=quick)
    plots = out / PLOTS
    plots.mkdir(exist_ok=True)
    sections, table = [], []
    for experiment in experiments:
        part = list(rows(experiment, results))
        table += part
        files = [f"{PLOTS}/{file.name}" for file in draw(experiment, part, plots)]
        sections.append({"experiment": experiment, "plots": files, "rows": list(map(_row, part))})
    write_results(out / "results.csv", table)
    write_claims(out / "claims.csv", verdicts)
    write_runs(out / RUNS_CSV, results.runs())
    environment = Environment(
        loader=PackageLoader("loadgen.reproduce", "."), autoescape=True, trim_blocks=True
    )
    text = environment.get_template("page.html").render(
        topics=_topics(verdicts),
        sections=[section for section in sections if section["rows"]],
        counts=_counts(verdicts),
        settings=[SETTINGS[name] for name in results.settings() if name in SETTINGS],
        commits=[commit[:12] for commit in results.commits()],
        runs=results.count,
        missing=missing,
        quick=quick,
        knees=_knees(results),
        screened=list(screened(results, COMPARED, SCREENING.loads[0], MAIN)),
    )
    page = out / "index.html"
    page.write_text(text, encoding="utf-8")
    return page


def _knees(results: Results) -> list[tuple[str, str]]:
    """Of the settings whose rates are shares of one."""
    loads = {setting for setting, run in results.runs() if run.get("load") is not None}
    return [
        (name, f"{SETTINGS[name].knee_qps():.2f}") for name in sorted(loads) if name in SETTINGS
    ]


def _counts(verdicts: Iterable[Verdict]) -> list[tuple[str, list[tuple[str, int]]]]:
    """For each source, how many verdicts of each kind."""
    found = []
    for source, title in SOURCES.items():
        words: dict[str, int] = {}
        for verdict in verdicts:
            if verdict.claim.source == source:
                words[verdict.word] = words.get(verdict.word, 0) + 1
        found.append((title, sorted(words.items())))
    return found


def _topics(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    grouped = groupby(verdicts, key=lambda verdict: (verdict.claim.source, verdict.claim.topic))
    return [
        {"source": SOURCES[source], "topic": topic, "claims": list(map(_claim, members))}
        for (source, topic), members in grouped
    ]


def _claim(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    return {
        "claim": claim,
        "claimed": _claimed(claim),
        "word": verdict.word,
        "css": verdict.word.split()[0] + ("-not" if verdict.word.startswith("not") else ""),
        "reason": verdict.reason,
        "answers": [_answer(claim, a) for a in verdict.answers],
    }


def _claimed(claim: Claim) -> str:
    sign = {"about": "about ", "at_most": "≤ ", "at_least": "≥ "}[claim.relation]
    if claim.relation != "about" and claim.number == 0:
        return "below 0" if claim.relation == "at_most" else "above 0"
    tolerance = f" ± {number(claim, claim.tolerance).lstrip('+')}" if claim.tolerance else ""
    return sign + number(claim, claim.number) + tolerance


def _answer(claim: Claim, answer: Answer) -> dict[str, Any]:
    return {
        "reading": answer.reading.name,
        "holds": {True: "yes", False: "no", None: answer.reason}[answer.holds],
        "figures": [_figure(claim, f) for f in answer.figures],
    }


def _figure(claim: Claim, found: Figure) -> dict[str, str]:
    parts = [] if len(claim.metrics) == 1 else [found.metric]
    if found.qps is not None:
        parts.append(f"{found.qps:.4g}/s")
    return {
        "where": ", ".join(parts),
        "value": show(claim, found.value),
        "bound": "" if found.bound is None else number(claim, found.bound),
        "over_bound": "" if found.over_bound is None else f"{found.over_bound:.2f}",
        "other": LABELS.get(found.other or "", found.other or ""),
        "seeds": str(len(found.seeds)),
    }


def _row(row: Row) -> list[str]:
    def cell(name: str, form: str, *, interval: bool = False) -> str:
        value = row.values.get(name)
        if value is None:
            return "–"
        return format(value.mean, form) + (_half(value, form) if interval else "")

    load = "" if row.load is None else f" ({row.load:g})"
    return [
        row.setting,
        f"{row.qps:.4g}{load}",
        LABELS.get(row.arm, row.arm),
        cell("hit_rate", ".2%", interval=True),
        cell("b1", ".1%"),
        cell("b3", ".1%"),
        cell("efficiency", ".3f"),
        cell("ttft_mean_s", ".2f"),
        cell("ttft_p50_s", ".2f"),
        cell("ttft_p90_s", ".2f"),
        cell("ttft_p99_s", ".2f", interval=True),
        cell("least_p99_s", ".2f"),
        cell("max_wait_s", ".2f"),
        cell("latency_mean_s", ".2f"),
        cell("latency_p99_s", ".2f"),
        cell("throughput_rps", ".1f"),
        _points(row.hit_gain),
        _change(row.p99_change),
        str(len(row.seeds)),
    ]


def _points(value: Interval | None) -> str:
    if value is None:
        return ""
    low, high = ends(value)
    return f"{100 * value.mean:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"


def _change(value: Interval | None) -> str:
    if value is None:
        return ""
    low, high = ends(value)
    return f"{100 * value.mean:+.0f}% [{100 * low:+.0f}, {100 * high:+.0f}]"


def _half(value: Interval, form: str) -> str:
    if value.high is None:
        return ""
    return f" ± {format(value.high - value.mean, form)}"
