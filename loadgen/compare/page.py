"""The page of a comparison: table, verdicts, plots and how it was made, as markdown. Runs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from loadgen.compare.arms import EVERY
from loadgen.compare.plots import draw
from loadgen.compare.provenance import differences
from loadgen.compare.runs import RunDirectory
from loadgen.compare.tables import Pair, Result, Row, tabulate, told_apart
from loadgen.compare.verdicts import Verdict, verdicts
from loadgen.markdown import markdown_table
from loadgen.sweep.intervals import Interval

INDEX = "index.md"
_HEAD = (
    "load", "arm", "seeds", "hit rate", "B4", "TTFT mean", "P50", "P90", "P99 [95%]", "hit ×", "P99 ×",
    "mean ×", "simulated: hit", "mean", "P99", "others' cores",
)  # fmt: skip


def write_page(directory: RunDirectory, intro: str = "") -> None:
    """Write ``index.md``, ``summary.json`` and the plots from the directory's runs.

    Raises Incomparable, or ValueError if there are no runs.
    """
    results = directory.runs()
    order = list(EVERY)
    rows = tabulate(results, order)
    pairs = told_apart(results)
    answers = verdicts(results)
    plots = draw(results, order, directory.path)
    setting = directory.read("setting.json") or {}
    knee = directory.read("knee.json") or {}
    summary = {
        "measured": "all but predicted_*",
        "rows": [asdict(row) for row in rows],
        "verdicts": [asdict(verdict) for verdict in answers],
        "pairs_told_apart": [asdict(pair) | {"agrees": pair.agrees} for pair in pairs],
    }
    directory.write("summary.json", summary)
    parts = [
        "# SGLang's policies and ours on the real engine",
        _made(setting, knee, results),
        _calls((directory.read("calls.json") or {"calls": []})["calls"]),
        _unlike(results),
        intro.strip(),
        "## Figures",
        _NOTE,
        table(rows),
        _uneven(rows),
        "## What was asked",
        answers_table(answers),
        "## Does the simulator order the arms alike?",
        _pairs(pairs),
        *_where(directory.read("where.json")),
        "## Plots",
        *(f"![{says}]({name})\n\n{says}" for name, says in plots),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    (directory.path / INDEX).write_text(text, encoding="utf-8")


_NOTE = (
    "Measured, but for the three columns that say *simulated*. Seconds; TTFT is a client's, from the "
    "scheduled arrival to the first part of the answer. Intervals are 95% (Student's t) over seeds; "
    "the three × columns are ratios to SGLang's best policy at that load (lowest P99), paired by seed, "
    "geometric means; where the two have not the same seeds, `n paired` says how many both have. `B4`: no "
    "order of these requests and segments hits more in this pool. `others' "
    "cores`: what else ran on the machine meanwhile."
)


def _made(setting: Mapping[str, Any], knee: Mapping[str, Any], results: Sequence[Result]) -> str:
    commits = sorted({str(r["git_commit"])[:12] for r in results})
    seeds = sorted({r["seed"] for r in results})
    cores = results[0]["machine_load"]["cores"]
    lines = [
        f"{len(results)} runs on a machine of {cores} cores, seeds {', '.join(map(str, seeds))}, "
        f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}; own use "
        f"{_mean(results, 'own_cores'):.2f} cores, others' {_mean(results, 'others_cores'):.2f} on "
        "average. A commit that is not in your clone is of the development history before it.",
        f"- engine: `{json.dumps(setting.get('machine', {}))}`",
        f"- workload: `{json.dumps(setting.get('workload', {}))}`",
        f"- pool: {results[0]['limits']['pool_tokens']:,} tokens; "
        f"{results[0]['limits']['max_running']} requests run at a time",
    ]
    if knee:
        lines.append(f"- knee: {knee['qps']:.2f} requests/s, {_knee(knee)}")
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _knee(knee: Mapping[str, Any]) -> str:
    tried = [f"`{run['arm']}`" for run in knee["tried"]]
    if not tried:
        return "given"
    who = tried[0] if len(tried) == 1 else f"the best of {', '.join(tried)} (`{knee['arm']}`)"
    alone = "; no other arm was tried" if len(tried) == 1 else ""
    return f"97% of what {who} answers when all requests wait from the start (`knee.json`){alone}"


def _calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """How long was measured, and what a budget left out."""
    if not calls:
        return ""
    minutes = sum(call["elapsed_s"] for call in calls) / 60
    text = f"Measured for {minutes:.0f} minutes in {len(calls)} call{'s' * (len(calls) > 1)}."
    left = calls[-1]["runs_left"]
    return text + (f" **{left} runs are left** for another call." if left else "")


def _mean(results: Sequence[Result], name: str) -> float:
    return fmean(r["machine_load"][name] for r in results)


def table(rows: Iterable[Row]) -> str:
    """The rows as markdown."""
    return markdown_table(_HEAD, map(_cells, rows))


def _unlike(results: Sequence[Result]) -> str:
    """A warning where the runs were made on unlike machines or versions; else nothing."""
    found = differences(results)
    if not found:
        return ""
    return (
        "**Not all runs were made on the same.** They differ in:\n\n"
        + "\n".join(f"- {one}" for one in found)
        + "\n\nRatios are paired by seed: where one seed's arms differ so, they compare machines, too."
    )


def _uneven(rows: Sequence[Row]) -> str:
    """What has to be said where the arms of a load were not run with the same seeds; else nothing."""
    lines = []
    for load in dict.fromkeys(row.load for row in rows):
        own = {row.arm: row.seeds for row in rows if row.load == load}
        if len(set(own.values())) > 1:
            seeds = "; ".join(f"`{arm}` {', '.join(map(str, s))}" for arm, s in own.items())
            lines.append(f"- at {load:g}: {seeds}")
    if not lines:
        return ""
    return (
        "**Not all arms have the same seeds**, and the means of a row are over its own: read the "
        "ratios, which are over seeds that both arms have.\n\n" + "\n".join(lines)
    )


def _cells(row: Row) -> list[str]:
    return [
        f"{row.load:g}",
        f"`{row.arm}`",
        _seeds(row),
        f"{row.hit_rate.mean:.1%}",
        "" if row.hit_bound is None else f"{row.hit_bound:.1%}",
        f"{row.ttft_mean_s:.2f}",
        f"{row.ttft_p50_s:.2f}",
        f"{row.ttft_p90_s:.2f}",
        _seconds(row.ttft_p99_s),
        _ratio(row.hit_change),
        _ratio(row.p99_change),
        _ratio(row.mean_change),
        "" if row.predicted_hit_rate is None else f"{row.predicted_hit_rate:.1%}",
        "" if row.predicted_mean_s is None else f"{row.predicted_mean_s:.2f}",
        "" if row.predicted_p99_s is None else f"{row.predicted_p99_s:.2f}",
        f"{row.others_cores:.2f}",
    ]


def _seeds(row: Row) -> str:
    paired = len(row.paired_seeds)
    compared = row.p99_change is not None and paired != len(row.seeds)
    return f"{len(row.seeds)}, {paired} paired" if compared else str(len(row.seeds))


def _seconds(value: Interval) -> str:
    ends = "" if value.low is None else f" [{value.low:.2f}, {value.high:.2f}]"
    return f"{value.mean:.2f}{ends}"


def _ratio(change: Interval | None) -> str:
    if change is None:
        return ""
    ends = "" if change.low is None else f" [{1 + change.low:.2f}, {1 + (change.high or 0.0):.2f}]"
    return f"{1 + change.mean:.2f}{ends}"


def answers_table(answers: Iterable[Verdict]) -> str:
    """The verdicts as markdown."""
    return markdown_table(
        ("asked", "reached", "seeds", ""),
        [
            (
                a.question,
                a.answer,
                "" if a.seeds is None else str(a.seeds),
                "met" if a.met else "**not met**",
            )
            for a in answers
        ],
    )


def _pairs(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return "No two arms differ by more than their interval, or nothing was simulated."
    wrong = [pair for pair in pairs if not pair.agrees]
    counts = []
    for measure in dict.fromkeys(pair.measure for pair in pairs):
        own = [pair for pair in pairs if pair.measure == measure]
        counts.append(f"{measure} {sum(pair.agrees for pair in own)} of {len(own)}")
    text = f"Of the pairs that the engine tells apart it orders alike: {', '.join(counts)}."
    lines = [
        f"- {pair.measure} at {pair.load:g}, {len(pair.seeds)} seeds: `{pair.first}` against "
        f"`{pair.second}` measured {_percent(pair.measured.mean, pair)}, "
        f"simulated {_percent(pair.predicted, pair)}"
        for pair in wrong
    ]
    return text + ("\n\nNot alike:\n\n" + "\n".join(lines) if lines else "")


def _where(told: Mapping[str, Mapping[str, float]] | None) -> list[str]:
    if not told:
        return []
    lines = [
        "## Where the engine's time goes",
        "Recorded at the knee, shares of the time from the first arrival to the last answer "
        "(`where.json`).",
        "| arm | prefill | decode | between steps | idle | prefilled tokens | tokens/s of prefill |\n"
        "|---|---|---|---|---|---|---|\n"
        + "\n".join(
            f"| `{arm}` | {w['prefill']:.0%} | {w['decode']:.0%} | {w['scheduling']:.0%} | "
            f"{w['idle']:.0%} | {w['prefilled_tokens']:,.0f} | {w['prefilled_tokens_per_s']:,.0f} |"
            for arm, w in told.items()
        ),
    ]
    return lines


def _percent(value: float, pair: Pair) -> str:
    unit = " points" if pair.measure == "hit rate" else "%"
    return f"{100 * value:+.1f}{unit}"
