"""Telemetry values as bytes: msgpack with a schema version and limits. Knows no keys and no server.

What is read back may have been written by another version or by somebody else, so reading is as
strict as writing: size, depth, types and version are checked, and text for people is bounded and
printable. No pickle, no extension types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import msgpack

from prism_ray.model import Decision, InFlight, Lane, ReplicaSnapshot

SCHEMA_VERSION = 1
MAX_BYTES = 256 * 1024
MAX_DEPTH = 8
MAX_LABEL_CHARS = 64
MAX_REASON_CHARS = 256

Value = dict[str, Any]


class CodecError(ValueError):
    """A value beyond the limits, or bytes that are no telemetry value."""


class UnknownVersion(CodecError):
    """A well-formed value of a schema version that this code does not read."""


class SegmentRow(NamedTuple):
    """Counters of one segment (paper, eqs. 7-9): active A, queued G, next N, priority P.

    ``id`` is the digest in hex; ``label`` is the client's own name for it, for people only.
    """

    id: str
    label: str
    active: int
    queued: int
    next: int
    priority: float


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A replica's snapshot with what the scheduler adds to it.

    ``residency`` is how far the scheduler's view of the cache can be trusted: exact, degraded or
    fallback. ``at_unix_s`` is wall time, since monotonic clocks do not compare across machines.
    """

    snapshot: ReplicaSnapshot
    credit_tokens: int
    residency: str
    at_unix_s: float


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision and when it was made (wall time)."""

    decision: Decision
    at_unix_s: float


def bounded_text(text: str, limit: int) -> str:
    """At most ``limit`` characters, unprintable ones replaced: safe to write to a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:limit])


def _depth(value: object) -> int:
    """Nesting of containers: 0 for a scalar. Gives up (returns more) just beyond the limit."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        inner: list[object] = []
        containers = False
        for item in level:
            if isinstance(item, Mapping):
                containers = True
                inner.extend(item.values())
            elif isinstance(item, (list, tuple)):
                containers = True
                inner.extend(item)
        if not containers:
            break
        depth, level = depth + 1, inner
    return depth


def encode(value: Mapping[str, Any]) -> bytes:
    """One value as bytes; CodecError beyond the limits or for types that msgpack does not have."""
    if _depth(value) > MAX_DEPTH:
        raise CodecError(f"value nests deeper than {MAX_DEPTH}")
    try:
        data: bytes = msgpack.packb({**value, "v": SCHEMA_VERSION}, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"value cannot be packed: {error}") from error
    if len(data) > MAX_BYTES:
        raise CodecError(f"value takes {len(data)} bytes, the limit is {MAX_BYTES}")
    return data


def decode(data: bytes) -> Value:
    """The value of ``data``; UnknownVersion or CodecError otherwise."""
    if len(data) > MAX_BYTES:
        raise CodecError(f"value takes {len(data)} bytes, the limit is {MAX_BYTES}")
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise CodecError(f"no msgpack value: {error}") from error
    if not isinstance(value, dict):
        raise CodecError("value is no map")
    if value.get("v") != SCHEMA_VERSION:
        raise UnknownVersion(f"schema version {value.get('v')!r}, this reads {SCHEMA_VERSION}")
    if _depth(value) > MAX_DEPTH:
        raise CodecError(f"value nests deeper than {MAX_DEPTH}")
    del value["v"]
    return value


def _take(value: Value, key: str, kind: type) -> Any:
    """A field of exactly this type (bool is no int; an int passes for a float)."""
    item = value.get(key)
    if kind is float and type(item) is int:
        return float(item)
    if type(item) is not kind:
        raise CodecError(f"field {key!r} should be {kind.__name__}, is {type(item).__name__}")
    return item


_SCALARS = {"str": str, "int": int, "float": float}


def _take_scalars(value: Value, noun: type) -> dict[str, Any]:
    """Those fields of a frozen noun that are plain strings, ints or floats."""
    return {
        f.name: _take(value, f.name, _SCALARS[str(f.type)])
        for f in fields(noun)
        if str(f.type) in _SCALARS
    }


def encode_replica(row: ReplicaRow) -> bytes:
    value = {f.name: getattr(row.snapshot, f.name) for f in fields(ReplicaSnapshot)}
    value["in_flight"] = [list(f) for f in row.snapshot.in_flight]
    value["credit_tokens"] = row.credit_tokens
    value["residency"] = row.residency
    value["at_unix_s"] = row.at_unix_s
    return encode(value)


def decode_replica(data: bytes) -> ReplicaRow:
    value = decode(data)
    return ReplicaRow(
        snapshot=ReplicaSnapshot(
            **_take_scalars(value, ReplicaSnapshot),
            in_flight=tuple(_in_flight(item) for item in _take(value, "in_flight", list)),
        ),
        credit_tokens=_take(value, "credit_tokens", int),
        residency=bounded_text(_take(value, "residency", str), MAX_LABEL_CHARS),
        at_unix_s=_take(value, "at_unix_s", float),
    )


def _in_flight(item: object) -> InFlight:
    match item:
        case [str(request_id), int(attempt), int(uncached), bool(prefilled)]:
            return InFlight(request_id, attempt, uncached, prefilled)
    raise CodecError("field 'in_flight' holds a malformed row")


def encode_segments(rows: Iterable[SegmentRow], at_unix_s: float) -> bytes:
    packed = [[r.id, bounded_text(r.label, MAX_LABEL_CHARS), *r[2:]] for r in rows]
    return encode({"rows": packed, "at_unix_s": at_unix_s})


def decode_segments(data: bytes) -> tuple[SegmentRow, ...]:
    return tuple(_segment(item) for item in _take(decode(data), "rows", list))


def _segment(item: object) -> SegmentRow:
    match item:
        case [str(id_), str(label), int(active), int(queued), int(next_), float() | int() as p]:
            label = bounded_text(label, MAX_LABEL_CHARS)
            return SegmentRow(
                bounded_text(id_, 2 * MAX_LABEL_CHARS), label, active, queued, next_, float(p)
            )
    raise CodecError("field 'rows' holds a malformed row")


def encode_decision(row: DecisionRow) -> bytes:
    d = row.decision
    value = {f.name: getattr(d, f.name) for f in fields(Decision)}
    value["order"] = list(d.order)
    value["signature"] = list(d.signature)
    value["lane"] = str(d.lane)
    value["reason"] = bounded_text(d.reason, MAX_REASON_CHARS)
    value["at_unix_s"] = row.at_unix_s
    return encode(value)


def decode_decision(data: bytes) -> DecisionRow:
    value = decode(data)
    order, signature = _take(value, "order", list), _take(value, "signature", list)
    if any(type(i) is not int for i in order) or any(type(s) is not bytes for s in signature):
        raise CodecError("field 'order' or 'signature' holds a malformed item")
    try:
        lane = Lane(_take(value, "lane", str))
    except ValueError as error:
        raise CodecError(str(error)) from error
    scalars = _take_scalars(value, Decision)
    scalars["reason"] = bounded_text(scalars["reason"], MAX_REASON_CHARS)
    decision = Decision(**scalars, order=tuple(order), lane=lane, signature=tuple(signature))
    return DecisionRow(decision, _take(value, "at_unix_s", float))
