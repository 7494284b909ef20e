"""What rows say: percentiles, hit rate, the terms of TTFT, as a dict and as a table. Sends nothing.

Statistics are over answered requests only; the others are counted by kind beside them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.bounds import bounds_in_words
from loadgen.rows import RequestRow
from loadgen.slo import Slo

PERCENTILES = (50, 90, 95, 99)

TTFT_TERMS = ("queue_wait_s", "prefill_s", "first_token_s")
"""The terms of TTFT in the server's report (paper, eq. 2); they add up to its ``total_s``."""


LATE_P99_S = 0.020
"""A generator that is later than this is what it measures."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The ``percent``-th percentile, linear between neighbours; NaN of nothing."""
    return float(np.percentile(np.asarray(values), percent)) if len(values) else math.nan


def spread(values: Iterable[float | None]) -> dict[str, float | int]:
    """Count, mean, percentiles and maximum of the values that are there; empty without any."""
    known = [v for v in values if v is not None]
    if not known:
        return {}
    figures: dict[str, float | int] = {"count": len(known), "mean": float(np.mean(known))}
    figures |= {f"p{p}": percentile(known, p) for p in PERCENTILES}
    return figures | {"max": max(known)}


def hit_rate(rows: Iterable[RequestRow]) -> float | None:
    """Σ cached / Σ prompt tokens over answered rows whose server told both; None without any."""
    known = [
        (r.cached_tokens, r.prompt_tokens)
        for r in rows
        if r.answered and r.cached_tokens is not None and r.prompt_tokens is not None
    ]
    prompt = sum(p for _, p in known)
    return sum(c for c, _ in known) / prompt if prompt else None


def ttft_term(row: RequestRow, term: str) -> float | None:
    """One term of the server's own TTFT (``TTFT_TERMS`` or ``total_s``), seconds."""
    terms = (row.prism or {}).get("ttft")
    value = terms.get(term) if isinstance(terms, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def summarize(
    rows: Sequence[RequestRow],
    *,
    arrival_period_s: float | None = None,
    from_s: float = 0.0,
    slo: Slo | None = None,
    closed: bool = False,
) -> dict[str, Any]:
    """Figures of a run, JSON-ready; times in seconds. Those due before ``from_s`` are warm-up and do
    not count.

    ``ttft_s`` counts from the scheduled arrival at the client; ``ttft_terms_s`` are the server's.
    ``answered_in_arrival_period`` is the share of all arrivals that were answered before the last
    arrival was due: 0.97 and more is below the knee. ``arrival_period_s`` is the last arrival by
    default; in a ``closed`` loop, where requests come as answers end, both are None. ``itl_s``: gaps
    between chunks with content, in which an engine may send several tokens.
    ``goodput``: answers that meet ``slo``, as a share of all requests and per second.
    """
    rows = [r for r in rows if r.scheduled_s >= from_s]
    good = [r for r in rows if r.answered]
    period_s = arrival_period_s or max((r.scheduled_s for r in rows), default=0.0)
    last_s = max((r.ended_s for r in good if r.ended_s is not None), default=from_s)
    span_s = last_s - from_s
    in_period = sum(r.ended_s is not None and r.ended_s <= period_s for r in good)
    return {
        "requests": len(rows),
        "outcomes": dict(Counter(str(r.outcome) for r in rows)),
        "errors": dict(Counter(_error(r) for r in rows if not r.answered)),
        "arrival_period_s": None if closed else period_s,
        "span_s": span_s,
        "answered_per_s": len(good) / span_s if span_s else None,
        "answered_in_arrival_period": in_period / len(rows) if rows and not closed else None,
        "prompt_tokens": sum(r.prompt_tokens or 0 for r in good),
        "cached_tokens": sum(r.cached_tokens or 0 for r in good),
        "output_tokens": sum(r.output_tokens or 0 for r in good),
        "hit_rate": hit_rate(rows),
        **_times(good),
        "lateness_s": spread(r.lateness_s for r in rows),
        "lanes": dict(Counter(r.lane or "unknown" for r in good)),
        "replicas": dict(Counter(r.replica or "unknown" for r in good)),
        "by_lane": _groups(rows, "lane", slo, span_s),
        "by_replica": _groups(rows, "replica", slo, span_s),
        "goodput": None if slo is None else _goodput(rows, slo, span_s),
    }


def _times(good: Sequence[RequestRow]) -> dict[str, Any]:
    """The spreads of answered rows, TTFT's terms among them where the server told them."""
    return {
        "ttft_s": spread(r.ttft_s for r in good),
        "ttft_terms_s": {t: spread(ttft_term(r, t) for r in good) for t in TTFT_TERMS},
        "tpot_s": spread(r.tpot_s for r in good),
        "itl_s": spread(g for r in good for g in r.gaps_s),
        "latency_s": spread(r.latency_s for r in good),
    }


def _groups(
    rows: Sequence[RequestRow], key: str, slo: Slo | None, span_s: float
) -> dict[str, dict[str, Any]]:
    """The same figures of each value of a row's ``key``; what failed before one was told is unknown's."""
    groups: dict[str, list[RequestRow]] = {}
    for row in rows:
        groups.setdefault(getattr(row, key) or "unknown", []).append(row)
    return {
        name: {
            "requests": len(members),
            "answered": len(good := [r for r in members if r.answered]),
            "errors": dict(Counter(_error(r) for r in members if not r.answered)),
            "hit_rate": hit_rate(members),
            **_times(good),
            "goodput": None if slo is None else _goodput(members, slo, span_s),
        }
        for name, members in sorted(groups.items())
    }


def _goodput(rows: Sequence[RequestRow], slo: Slo, span_s: float) -> dict[str, Any]:
    met = sum(slo.met(r) for r in rows)
    return {
        "slo": slo.to_json(),
        "met": met,
        "share": met / len(rows) if rows else None,
        "per_s": met / span_s if span_s > 0 else None,
    }


def late_warning(summary: Mapping[str, Any], processes: int, cores: int) -> str | None:
    """What to say of a run whose generator fell behind its own schedule; None if it did not.

    ``processes``: how many it had. More than the machine has ``cores`` would wait for each other.
    """
    late_s = summary["lateness_s"].get("p99", 0.0)
    if late_s <= LATE_P99_S:
        return None
    had = "1 process" if processes == 1 else f"{processes} processes"
    advice = (
        f"try --processes {processes + 1}, or another machine than the server's"
        if processes < cores
        else f"{cores} cores keep no more: use another machine than the server's"
    )
    return (
        f"the generator was late with {had} (P99 {1000 * late_s:.0f} ms): its own delay is in the "
        f"times; {advice}"
    )


def _error(row: RequestRow) -> str:
    parts = [str(row.outcome), str(row.status or ""), row.error_code or ""]
    return " ".join(p for p in parts if p)


def table(summary: Mapping[str, Any]) -> str:
    """The summary for people; milliseconds. ``bounds`` (``bounds_beside``), where the summary has any,
    stand beside the hit rate."""
    bounds = bounds_in_words(summary.get("bounds", {}))
    rate, throughput = summary["hit_rate"], summary["answered_per_s"]
    lines = [
        f"requests   {summary['requests']}: {_counts(summary['outcomes'])}",
        f"hit rate   {'unknown' if rate is None else f'{rate:.1%}'}"
        f"   ({summary['cached_tokens']} of {summary['prompt_tokens']} prompt tokens)"
        + (f"   bounds {bounds}" if bounds else ""),
        f"throughput {'none' if throughput is None else f'{throughput:.2f} answers/s'}",
        f"lanes      {_counts(summary['lanes'])}",
        f"replicas   {_counts(summary['replicas'])}",
    ]
    if (goodput := summary["goodput"]) is not None and goodput["per_s"] is not None:
        lines.append(f"goodput    {goodput['per_s']:.2f} answers/s, {goodput['share']:.1%} of all")
    if summary["errors"]:
        lines.append(f"errors     {_counts(summary['errors'])}")
    columns = ("mean", *(f"p{p}" for p in PERCENTILES), "max")
    lines += ["", f"{'ms':<22}" + "".join(f"{c:>11}" for c in columns)]
    timed = [
        ("TTFT (open loop)", summary["ttft_s"]),
        *((f"  {t.removesuffix('_s')}", f) for t, f in summary["ttft_terms_s"].items()),
        ("TPOT", summary["tpot_s"]),
        ("ITL (chunk gaps)", summary["itl_s"]),
        ("whole answer", summary["latency_s"]),
        ("generator's lateness", summary["lateness_s"]),
    ]
    lines += [
        f"{name:<22}" + "".join(f"{1000 * figures[c]:>11.1f}" for c in columns)
        for name, figures in timed
        if figures
    ]
    return "\n".join(lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "none"
