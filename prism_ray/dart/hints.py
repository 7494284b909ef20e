"""The hint format: what a request tells an engine's cache about its own spans and about demand.

Plain JSON values in and out, checked and bounded; who carries them is an adapter's business. The same
format is described for others by ``prism_ray/data/dart-hints.schema.json`` and ``docs/dart.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from prism_ray.dart.anchors import AnchorMark
from prism_ray.dart.demand import DemandState, dump_hints
from prism_ray.dart.node import NodeKind
from prism_ray.model import Demand, DemandTable

ANCHORS_ACTION = "dart.anchors"
DEMAND_ACTION = "dart.demand"
FORMAT_VERSION = 1
ANCHORS_MAX = 4096
ROWS_MAX = 8192
KEY_BYTES_MAX = 64
EPOCH_CHARS_MAX = 128
OFFSET_MAX = 1 << 31
VERSION_MAX = 1 << 62
PRIORITY_MAX = 1e18

_KINDS = {int(kind): kind for kind in NodeKind}


class BadHint(ValueError):
    """A hint that does not follow the format; the message says where. Hints are only ever ignored."""


def dump_anchors(marks: Sequence[AnchorMark]) -> dict[str, Any]:
    """Payload of ``dart.anchors``: [offset, kind, segment or null, path key or null] of each mark."""
    rows = [[m.offset_tokens, int(m.kind), _hex(m.segment), _hex(m.path_key)] for m in marks]
    return {"v": FORMAT_VERSION, "anchors": rows}


def dump_demand(table: DemandTable, epoch: str = "") -> dict[str, Any]:
    """Payload of ``dart.demand``: version, epoch and [segment or path key, P̂, next use] rows."""
    return {"v": FORMAT_VERSION, **dump_hints(table, epoch)}


def envelope(
    message_id: str,
    marks: Sequence[AnchorMark] = (),
    demand: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """SGLang's ``kv_hints`` of one request; None if there is nothing to say."""
    payloads: dict[str, Mapping[str, Any]] = {}
    if marks:
        payloads[ANCHORS_ACTION] = dump_anchors(marks)
    if demand is not None:
        payloads[DEMAND_ACTION] = demand
    if not payloads:
        return None
    actions = [
        {"action_id": name, "action_type": name, "action_version": "1", "payload": payload}
        for name, payload in payloads.items()
    ]
    return {"protocol_version": "1", "message_id": message_id, "actions": actions}


def parse_anchors(payload: Any) -> tuple[AnchorMark, ...]:
    """The inverse of ``dump_anchors``: offsets ascend. Raises BadHint."""
    rows = _rows(payload, "anchors", ANCHORS_MAX)
    marks: list[AnchorMark] = []
    before = 0
    for index, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) != 4:
            raise BadHint(f"anchors[{index}] must be [offset, kind, segment, path_key]")
        offset, kind, segment, path_key = row
        if type(offset) is not int or not before <= offset < OFFSET_MAX:
            raise BadHint(f"anchors[{index}][0] must be an ascending token offset, got {offset!r}")
        if type(kind) is not int or kind not in _KINDS:
            raise BadHint(f"anchors[{index}][1] must be a kind from 0 to 3, got {kind!r}")
        where = f"anchors[{index}]"
        marks.append(AnchorMark(offset, _KINDS[kind], _key(segment, where), _key(path_key, where)))
        before = offset
    return tuple(marks)


def parse_demand(payload: Any, demand: DemandState | None = None) -> tuple[DemandTable, str] | None:
    """The inverse of ``dump_demand``; None if it only names a version. Raises BadHint.

    A table that is no news to ``demand`` is recognized by its version, and its rows are not read.
    """
    if not isinstance(payload, Mapping):
        raise BadHint("a hint's payload must be an object")
    version, epoch = payload.get("version"), payload.get("epoch", "")
    if type(version) is not int or not 0 <= version < VERSION_MAX:
        raise BadHint(f"version must be a whole number from 0, got {version!r}")
    if not isinstance(epoch, str) or len(epoch) > EPOCH_CHARS_MAX:
        raise BadHint(f"epoch must be text of at most {EPOCH_CHARS_MAX} characters")
    if "rows" not in payload or (demand is not None and not demand.is_news(version, epoch)):
        return None
    rows = [_row(row, index) for index, row in enumerate(_rows(payload, "rows", ROWS_MAX))]
    return DemandTable(version, tuple(rows)), epoch


def _rows(payload: Any, name: str, limit: int) -> Sequence[Any]:
    if not isinstance(payload, Mapping):
        raise BadHint("a hint's payload must be an object")
    if payload.get("v", FORMAT_VERSION) != FORMAT_VERSION:
        raise BadHint(f"v must be {FORMAT_VERSION}, got {payload.get('v')!r}")
    rows = payload.get(name)
    if not isinstance(rows, list | tuple):
        raise BadHint(f"{name} must be a list")
    if len(rows) > limit:
        raise BadHint(f"{name} may have {limit} entries, got {len(rows)}")
    return rows


def _row(row: Any, index: int) -> Demand:
    where = f"rows[{index}]"
    if not isinstance(row, list | tuple) or not 2 <= len(row) <= 3:
        raise BadHint(f"{where} must be [key, priority, next_use]")
    key = _key(row[0], where)
    if key is None:
        raise BadHint(f"{where}[0] must be a segment or a path key")
    if type(row[1]) not in (int, float) or not -PRIORITY_MAX <= row[1] <= PRIORITY_MAX:
        raise BadHint(f"{where}[1] must be a number within ±{PRIORITY_MAX:g}")
    next_use = row[2] if len(row) == 3 else -1
    if type(next_use) is not int or not -1 <= next_use < VERSION_MAX:
        raise BadHint(f"{where}[2] must be a position or -1, got {next_use!r}")
    return Demand(key, float(row[1]), next_use)


def _key(value: Any, where: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str) and 0 < len(value) <= 2 * KEY_BYTES_MAX:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    if isinstance(value, bytes) and 0 < len(value) <= KEY_BYTES_MAX:
        return value
    raise BadHint(f"{where}: a key is 1 to {KEY_BYTES_MAX} bytes in hexadecimal or null")


def _hex(key: bytes | None) -> str | None:
    return None if key is None else key.hex()


def schema() -> dict[str, Any]:
    """The format as a JSON Schema (2020-12) of SGLang's ``kv_hints`` field."""
    file = resources.files("prism_ray") / "data" / "dart-hints.schema.json"
    parsed: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return parsed
