"""The tables of the live page and ``prism-ray top``: their columns, and a state's rows in them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from prism_ray.telemetry.live_page_words import part, percent, printable, score, seconds, whole

Tone = Literal["", "good", "warn", "quiet"]

RESIDENCY_TONES: Mapping[str, Tone] = {"exact": "good", "degraded": "warn", "fallback": "quiet"}


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


_LANES = (
    Column("hot", "sent by the hot lane since the policy met it", number=True),
    Column("cold", "sent by the cold lane since the policy met it", number=True),
)


def replicas(
    replicas: Sequence[Mapping[str, Any]], lanes: Mapping[str, Mapping[str, int]]
) -> Table:
    columns = (
        Column("replica"),
        Column("takes", "whether it is given new requests"),
        Column("residency", "how exactly the scheduler knows its cache"),
        Column("waiting", "its share of the prompt tokens that wait in the window", number=True),
        Column("credit", "tokens that may still be sent ahead of its prefill", number=True),
        *(_LANES if lanes else ()),
        Column("sent", "requests sent and not returned", number=True),
        Column("to prefill", "of these, with a prefill ahead", number=True),
        Column("running", "in the engine", number=True),
        Column("queued", "waiting inside the engine", number=True),
        Column("pool used", "tokens of the KV pool in use", number=True),
        Column("resident", "reusable tokens believed to be in the cache", number=True),
        Column("hit rate", "cached part of all its prompt tokens", number=True),
        Column("prefill/s", "tokens, measured", number=True),
    )
    rows = tuple(_replica(r, lanes.get(r["replica"]), bool(lanes)) for r in replicas)
    return Table("replicas", "Replicas", columns, rows, "no replica has joined")


def _replica(
    replica: Mapping[str, Any], lane: Mapping[str, int] | None, has_lanes: bool
) -> tuple[Cell, ...]:
    name = printable(replica["replica"])
    residency = str(replica["residency"])
    used, pool = replica["pool_used_tokens"], replica["pool_tokens"]
    hit_rate = replica["hit_rate"]
    by_lane = [Cell(whole(lane[key] if lane else None)) for key in ("hot", "cold")]
    return (
        Cell(name, full=f"{name}, {printable(str(replica['model']))}"),
        Cell("no", tone="warn") if replica["draining"] else Cell("yes"),
        Cell(printable(residency), tone=RESIDENCY_TONES.get(residency, "")),
        Cell(whole(replica["queued_tokens"])),
        Cell(whole(replica["credit_tokens"])),
        *(by_lane if has_lanes else ()),
        Cell(whole(replica["sent"]), full=f"{replica['foreign']} of another scheduler besides"),
        Cell(whole(replica["not_prefilled"])),
        Cell(whole(replica["running"])),
        Cell(whole(replica["engine_waiting"])),
        Cell(f"{whole(used)} / {whole(pool)}", part=part(used, pool)),
        Cell(whole(replica["resident_tokens"])),
        Cell(percent(hit_rate), part=hit_rate),
        Cell(whole(replica["prefill_tokens_per_s"])),
    )


def segments(segments: Sequence[Mapping[str, Any]]) -> Table:
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
            Cell(score(s["priority"]), part=part(s["priority"], most)),
        )
        for s in segments
    )
    return Table("segments", "Hot segments", columns, rows, "nothing is reused now")


def buckets(buckets: Sequence[Mapping[str, Any]]) -> Table:
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
            Cell(score(b["score"]), part=part(b["score"], most)),
        )
        for b in buckets
    )
    return Table("buckets", "Buckets", columns, rows, "nothing waits")


def fronts(fronts: Sequence[Mapping[str, Any]]) -> Table:
    most = max((f["saved_tokens"] for f in fronts), default=0)
    columns = (
        Column("front", "what several requests will write first", wide=True),
        Column("requests", "waiting requests that share it, and no longer one", number=True),
        Column("tokens", "length of the front", number=True),
        Column("saved", "tokens of these that are cached or computed for another", number=True),
        Column("ahead", "requests that go before the first of them", number=True),
    )
    rows = tuple(
        (
            Cell(" › ".join(map(printable, f["front"]))),
            Cell(whole(f["size"])),
            Cell(whole(f["tokens"])),
            Cell(whole(f["saved_tokens"]), part=part(f["saved_tokens"], most)),
            Cell(whole(f["position"])),
        )
        for f in fronts
    )
    return Table("fronts", "Planned fronts", columns, rows, "nothing that waits shares a front")


def decisions(decisions: Sequence[Mapping[str, Any]]) -> Table:
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
