"""What the live page and ``prism-ray top`` show of an application's state: words, numbers, tables.

Pure. Takes the JSON of ``/prism/state``; how a table or a line looks is ``live_page``'s and
``live_page_text``'s matter. Whatever a client named is made printable here, and escaped there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

Tone = Literal["", "good", "warn", "quiet"]

RESIDENCY_TONES: Mapping[str, Tone] = {"exact": "good", "degraded": "warn", "fallback": "quiet"}

NONE = "–"

SHORTER_SPANS_S = (60.0, 120.0, 300.0)
"""What a chart spans while there is no more to draw."""

OTHERS_HIDDEN = (
    "Several tenants are known: what they reuse, and what was decided for each, is not shown."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A value in a table. ``part`` (0 to 1) is drawn as a bar; ``full`` is the whole of a short text.

    ``more`` goes with it, for who reads on.
    """

    text: str
    more: str = ""
    part: float | None = None
    full: str = ""
    href: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Column:
    """``number``: aligned to the right. ``wide``: takes what room is left. ``help`` says what it is."""

    name: str
    help: str = ""
    number: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """``empty`` is said instead of rows, if there are none."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str


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
    tables = [_replicas(state["replicas"], window.get("lanes", {}))]
    if "segments" in window:
        tables.append(_segments(window["segments"]))
    if "buckets" in window:
        tables.append(_buckets(window["buckets"]))
    if alone:
        tables.append(_decisions(state.get("decisions") or ()))
    return View(
        policy=printable(str(state["policy"])),
        placement=printable(str(state["placement"])),
        epoch=printable(str(state["epoch"]))[:8],
        facts=_facts(state),
        charts=_charts(state.get("recent")),
        tables=tuple(tables),
        note="" if alone else OTHERS_HIDDEN,
    )


# -- words and numbers --------------------------------------------------------------------------


def printable(text: str) -> str:
    """Control characters, overrides of direction and lone surrogates as U+FFFD."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def whole(value: float | None) -> str:
    """1234567.8 as 1,234,568."""
    return NONE if value is None else f"{value:,.0f}"


def seconds(value_s: float | None) -> str:
    """Three digits and the unit that suits: 0.4 ms, 43 ms, 1.25 s, 2.5 min."""
    if value_s is None:
        return NONE
    if value_s < 0.01:
        return f"{value_s * 1000:.1f} ms"
    if value_s < 0.9995:
        return f"{value_s * 1000:.0f} ms"
    if value_s < 120:
        return f"{value_s:.3g} s"
    return f"{value_s / 60:.3g} min"


def percent(part: float | None) -> str:
    return NONE if part is None else f"{100 * part:.1f} %"


def score(value: float) -> str:
    """Four digits; no exponent for what people compare by eye."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _part(value: float | None, of: float | None) -> float | None:
    return None if value is None or not of else max(0.0, min(1.0, value / of))


# -- facts --------------------------------------------------------------------------------------


def _facts(state: Mapping[str, Any]) -> tuple[Fact, ...]:
    window, replicas, telemetry = state["window"], state["replicas"], state["telemetry"]
    open_ = sum(not r["draining"] for r in replicas)
    prompt, cached = telemetry["prompt_tokens_total"], telemetry["cached_tokens_total"]
    predicted = telemetry["predicted_cached_tokens_total"]
    facts = [
        Fact("waiting", whole(state["waiting"]), "in the window"),
        Fact("sent", whole(state["sent"]), "in the replicas"),
        *_lane_facts(window.get("lanes", {})),
        Fact(
            "hit rate",
            percent(_part(cached, prompt)),
            f"of {whole(prompt)} prompt tokens; predicted {percent(_part(predicted, prompt))}",
            part=_part(cached, prompt),
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


def _lane_facts(lanes: Mapping[str, Mapping[str, int]]) -> Iterable[Fact]:
    dispatched = sum(lane["dispatched"] for lane in lanes.values())
    for name in ("hot", "cold"):
        if lanes:
            count = sum(lane[name] for lane in lanes.values())
            part = _part(count, dispatched)
            more = f"{percent(part)} of what was sent"
            yield Fact(f"{name} lane", whole(count), more, part=part)


# -- charts -------------------------------------------------------------------------------------


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


# -- tables -------------------------------------------------------------------------------------


def _replicas(
    replicas: Sequence[Mapping[str, Any]], lanes: Mapping[str, Mapping[str, int]]
) -> Table:
    columns = [
        Column("replica"),
        Column("takes", "whether it is given new requests"),
        Column("residency", "how exactly the scheduler knows its cache"),
        Column("credit", "tokens that may still be sent ahead of its prefill", number=True),
        Column("sent", "requests sent and not returned", number=True),
        Column("to prefill", "of these, with a prefill ahead", number=True),
        Column("running", "in the engine", number=True),
        Column("queued", "waiting inside the engine", number=True),
        Column("pool used", "tokens of the KV pool in use", number=True),
        Column("resident", "reusable tokens believed to be in the cache", number=True),
        Column("hit rate", "cached part of all its prompt tokens", number=True),
        Column("prefill/s", "tokens, measured", number=True),
    ]
    if lanes:
        columns += [Column("hot", "sent by the hot lane", number=True)]
        columns += [Column("cold", "sent by the cold lane", number=True)]
    rows = tuple(_replica(r, lanes.get(r["replica"]), bool(lanes)) for r in replicas)
    return Table("replicas", "Replicas", tuple(columns), rows, "no replica has joined")


def _replica(
    replica: Mapping[str, Any], lane: Mapping[str, int] | None, has_lanes: bool
) -> tuple[Cell, ...]:
    name = printable(replica["replica"])
    residency = str(replica["residency"])
    used, pool = replica["pool_used_tokens"], replica["pool_tokens"]
    hit_rate = replica["hit_rate"]
    cells = [
        Cell(name, full=f"{name}, {printable(str(replica['model']))}"),
        Cell("no", tone="warn") if replica["draining"] else Cell("yes"),
        Cell(printable(residency), tone=RESIDENCY_TONES.get(residency, "")),
        Cell(whole(replica["credit_tokens"])),
        Cell(whole(replica["sent"]), full=f"{replica['foreign']} of another scheduler besides"),
        Cell(whole(replica["not_prefilled"])),
        Cell(whole(replica["running"])),
        Cell(whole(replica["engine_waiting"])),
        Cell(f"{whole(used)} / {whole(pool)}", part=_part(used, pool)),
        Cell(whole(replica["resident_tokens"])),
        Cell(percent(hit_rate), part=hit_rate),
        Cell(whole(replica["prefill_tokens_per_s"])),
    ]
    if has_lanes:
        cells += [Cell(whole(lane[key] if lane else None)) for key in ("hot", "cold")]
    return tuple(cells)


def _segments(segments: Sequence[Mapping[str, Any]]) -> Table:
    most = max((s["priority"] for s in segments), default=0.0)
    columns = (
        Column("segment", "the client's label, or the digest", wide=True),
        Column("active", "dispatched requests that have it", number=True),
        Column("queued", "waiting requests that have it", number=True),
        Column("next", "of the last dispatches of every replica", number=True),
        Column("priority", number=True),
    )
    rows = tuple(
        (
            Cell(printable(s["label"] or s["segment"][:16]), full=printable(s["segment"])),
            Cell(whole(s["active"])),
            Cell(whole(s["queued"])),
            Cell(whole(s["next"])),
            Cell(score(s["priority"]), part=_part(s["priority"], most)),
        )
        for s in segments
    )
    return Table("segments", "Hot segments", columns, rows, "nothing is reused now")


def _buckets(buckets: Sequence[Mapping[str, Any]]) -> Table:
    most = max((b["score"] for b in buckets), default=0.0)
    columns = (
        Column("bucket", "the front that its requests share", wide=True),
        Column("requests", number=True),
        Column("score", number=True),
    )
    rows = tuple(
        (
            Cell(" › ".join(map(printable, b["signature"])) or "nothing shared"),
            Cell(whole(b["size"])),
            Cell(score(b["score"]), part=_part(b["score"], most)),
        )
        for b in buckets
    )
    return Table("buckets", "Buckets", columns, rows, "nothing waits")


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        Column("ago", number=True),
        Column("request"),
        Column("replica"),
        Column("lane"),
        Column("waited", "from arrival to decision", number=True),
        Column("cached", "prompt tokens predicted to be cached", number=True),
        Column("score", number=True),
        Column("reason", "the policy's rule; the placement's rule and what it compared", wide=True),
    )
    rows = tuple(_decision(d) for d in decisions)
    return Table("decisions", "Last decisions", columns, rows, "nothing was decided yet")


def _decision(decision: Mapping[str, Any]) -> tuple[Cell, ...]:
    request = printable(decision["request_id"])
    return (
        Cell(seconds(decision["age_s"])),
        Cell(request[:12], full=request, href=f"explain/{quote(request, safe='')}"),
        Cell(printable(decision["replica"])),
        Cell(printable(decision["lane"])),
        Cell(seconds(decision["queue_s"])),
        Cell(whole(decision["predicted_cached_tokens"])),
        Cell(score(decision["score"])),
        _reason(printable(decision["reason"])),
    )


def _reason(reason: str) -> Cell:
    """The rules, and in brackets behind them the numbers that the placement compared."""
    rule, bracket, numbers = reason.partition(" (")
    if not bracket or not numbers.endswith(")"):
        return Cell(reason)
    return Cell(rule, numbers.removesuffix(")").replace("_", " "), full=reason)
