"""What the live page and ``prism-ray top`` show of an application's state: facts, charts, tables.

Pure. Takes the JSON of ``/prism/state``; how a table or a line looks is ``live_page``'s and
``live_page_text``'s matter. Whatever a client named is made printable here, and escaped there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prism_ray.telemetry import live_page_tables as tables
from prism_ray.telemetry.live_page_tables import Table, Tone
from prism_ray.telemetry.live_page_words import part, percent, printable, seconds, whole

SHORTER_SPANS_S = (60.0, 120.0, 300.0)
"""What a chart spans while there is no more to draw."""

OTHERS_HIDDEN = (
    "Several tenants are known: what they reuse, and what was decided for each, is not shown."
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that stands by itself; ``part`` (0 to 1) is drawn as a bar."""

    name: str
    text: str
    more: str = ""
    tone: Tone = ""
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A step of a chart: from one age to a smaller one, with the value of each line, or None."""

    begin_age_s: float
    end_age_s: float
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Seconds over the last ``span_s`` seconds; ``lines`` names the values of each step."""

    key: str
    title: str
    caption: str
    lines: tuple[str, ...]
    span_s: float
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class View:
    policy: str
    placement: str
    epoch: str
    facts: tuple[Fact, ...]
    charts: tuple[Chart, ...]
    tables: tuple[Table, ...]
    note: str


def view_of(state: Mapping[str, Any]) -> View:
    """Everything that is shown of ``QasActor.state``. What a policy does not tell is left out."""
    window: Mapping[str, Any] = state["window"]
    alone = "tenants" not in window
    shown = [tables.replicas(state["replicas"], window.get("lanes", {}))]
    for key, table in (
        ("segments", tables.segments),
        ("buckets", tables.buckets),
        ("fronts", tables.fronts),
    ):
        if key in window:
            shown.append(table(window[key]))
    if alone:
        shown.append(tables.decisions(state.get("decisions") or ()))
    return View(
        policy=printable(str(state["policy"])),
        placement=printable(str(state["placement"])),
        epoch=printable(str(state["epoch"]))[:8],
        facts=_facts(state),
        charts=_charts(state.get("recent")),
        tables=tuple(shown),
        note="" if alone else OTHERS_HIDDEN,
    )


def _facts(state: Mapping[str, Any]) -> tuple[Fact, ...]:
    window, replicas, telemetry = state["window"], state["replicas"], state["telemetry"]
    open_ = sum(not r["draining"] for r in replicas)
    prompt, cached = telemetry["prompt_tokens_total"], telemetry["cached_tokens_total"]
    predicted = telemetry["predicted_cached_tokens_total"]
    facts = [
        _waiting(state["waiting"], state["oldest_wait_s"]),
        Fact("sent", whole(state["sent"]), "in the replicas"),
        *(_lane_facts(state["recent"]["all"]) if "lanes" in window else ()),
        Fact(
            "hit rate",
            percent(part(cached, prompt)),
            f"of {whole(prompt)} prompt tokens; predicted {percent(part(predicted, prompt))}",
            part=part(cached, prompt),
        ),
        Fact(
            "replicas",
            whole(len(replicas)),
            "all take work" if open_ == len(replicas) else f"{open_} take work",
            "" if replicas and open_ == len(replicas) else "warn",
        ),
        Fact("decisions", whole(telemetry["decisions_total"]), f"{whole(state['rounds'])} rounds"),
        Fact(
            "store",
            "up" if telemetry["store_up"] else "down",
            "embedded" if telemetry["store_embedded"] else "by URL",
            "" if telemetry["store_up"] else "warn",
        ),
    ]
    if "tenants" in window:
        facts.insert(2, Fact("tenants", whole(window["tenants"]), "known"))
    return tuple(facts)


def _waiting(count: int, oldest_wait_s: float | None) -> Fact:
    more = "in the window"
    if oldest_wait_s is not None:
        more = f"in the window; the oldest for {seconds(oldest_wait_s)}"
    return Fact("waiting", whole(count), more)


def _lane_facts(recent: Mapping[str, Any]) -> Iterable[Fact]:
    """Shares of the decisions of the last minutes."""
    lanes = recent["lanes"]
    decided = sum(lanes.values())
    for name in ("hot", "cold"):
        share = part(lanes[name], decided)
        more = f"{whole(lanes[name])} of {whole(decided)} in {seconds(recent['begin_age_s'])}"
        yield Fact(f"{name} lane", percent(share), more, part=share)


def _charts(recent: Mapping[str, Any] | None) -> tuple[Chart, ...]:
    if recent is None:
        return ()
    terms = recent["all"]["ttft_terms"]
    parts = " + ".join(
        f"{seconds(terms[key])} {name}"
        for key, name in (
            ("queue_wait_s", "queue wait"),
            ("prefill_s", "prefill"),
            ("first_token_s", "first token"),
        )
    )
    return (
        _chart(recent, "ttft", "Time to first token", "answers", f"mean = {parts}"),
        _chart(recent, "queue_wait", "Queue wait", "decisions", "from arrival to decision"),
    )


def _chart(recent: Mapping[str, Any], key: str, title: str, what: str, more: str) -> Chart:
    every = recent["all"][key]
    count = whole(every["count"])
    caption = f"no {what} yet"
    if every["count"]:
        mean, p95 = seconds(every["mean_s"]), seconds(every["p95_s"])
        caption = f"mean {mean}, P95 about {p95}, {count} {what}; {more}"
    spans = tuple(
        Span(step["begin_age_s"], step["end_age_s"], (step[key]["mean_s"], step[key]["p95_s"]))
        for step in recent["steps"]
    )
    oldest_s = max((span.begin_age_s for span in spans), default=0.0)
    span_s = next((s for s in SHORTER_SPANS_S if oldest_s <= s), float(recent["span_s"]))
    return Chart(key, title, caption, ("mean", "P95"), min(span_s, recent["span_s"]), spans)
