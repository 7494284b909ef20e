"""Trace files: JSON Lines with Mooncake's four keys and ``segments``, and a file beside with the rest.

A line says all that scheduling needs; a reader that knows Mooncake's format only reads it as such.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadgen.traces.base import Trace, TraceRequest
from loadgen.traces.blocks import hash_ids
from loadgen.traces.data import read_json, read_json_lines
from loadgen.traces.mooncake import MooncakeRow, from_blocks, parse_row
from prism_ray.model import NO_GAP, Atom, Segment, SegmentKind, Skeleton

GAP, PRIVATE, OUTPUT = "gap", "private", "output"
_KINDS = {kind.value for kind in SegmentKind}


def meta_path(path: Path) -> Path:
    """Where name, seed, options, notes and hash of the trace in ``path`` are kept."""
    return path.with_name(path.name + ".meta.json")


def write_trace(trace: Trace, path: Path) -> None:
    """One line a request in ``path``, and what is said of the whole in ``meta_path(path)``.

    ``segments`` lists the prompt's pieces in native order: ``{"id": hex, "tokens", "kind"}``, for
    what may move also ``"run"``; the private rest only where it has a name, and at the end the
    output where a later request continues it.
    """
    with path.open("w", encoding="utf-8") as file:
        for number, (request, blocks) in enumerate(
            zip(trace.requests, hash_ids(trace.requests), strict=True)
        ):
            line: dict[str, Any] = {
                "timestamp": _number(round(request.arrival_s * 1000, 4)),
                "input_length": request.skeleton.prompt_tokens,
                "output_length": request.output_tokens,
                "hash_ids": blocks,
                "segments": list(_pieces(request)),
            }
            if request.request_id != f"r{number}":
                line["id"] = request.request_id
            if request.session:
                line["session"] = request.session
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    meta = {
        "name": trace.name,
        "seed": trace.seed,
        "options": dict(trace.options),
        "notes": list(trace.notes),
        "requests": len(trace.requests),
        "prompts_sha256": trace.prompts_sha256,
    }
    meta_path(path).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def read_trace(path: Path) -> Trace:
    """The trace in ``path``; one of Mooncake's own files is read too, block by block.

    Raises FileNotFoundError, or ValueError with path and line for what is no trace, and for lines
    that are not those that the file beside was written for.
    """
    rows: list[MooncakeRow] = []
    requests: list[TraceRequest] = []
    for number, value in enumerate(read_json_lines(path)):
        where = f"{path}:{number + 1}"
        row = parse_row(value, where)
        if "segments" in value:
            requests.append(_parse(value, row, number, where))
        else:
            rows.append(row)
    if rows and requests:
        raise ValueError(f'{path}: some lines have "segments" and some do not')
    meta: dict[str, Any] = read_json(meta_path(path)) if meta_path(path).exists() else {}
    trace = Trace(
        str(meta.get("name", path.stem)),
        int(meta.get("seed", 0)),
        dict(meta.get("options", {})),
        tuple(requests) or from_blocks(rows),
        tuple(meta.get("notes", [f"read from {path.name}"])),
    )
    if meta and meta.get("prompts_sha256") != trace.prompts_sha256:
        raise ValueError(f"{path}: not the prompts that {meta_path(path).name} was written for")
    return trace


def _pieces(request: TraceRequest) -> Iterator[dict[str, Any]]:
    skeleton = request.skeleton
    if skeleton.system is not None:
        yield _piece(skeleton.system.id, skeleton.system.tokens, SegmentKind.SYSTEM)
    for gap, segment in zip(skeleton.gaps, skeleton.segments, strict=True):
        if gap.tokens:
            yield _piece(gap.id, gap.tokens, GAP)
        piece = _piece(segment.id, segment.tokens, segment.kind)
        if segment.run is not None:
            piece["run"] = segment.run
        if segment.label:
            piece["label"] = segment.label
        yield piece
    for kind, atoms in ((PRIVATE, request.private), (OUTPUT, request.output)):
        for atom in atoms:
            yield _piece(atom.id, atom.tokens, kind)


def _piece(name: bytes, tokens: int, kind: str) -> dict[str, Any]:
    return {"id": name.hex(), "tokens": tokens, "kind": str(kind)}


def _parse(value: dict[str, Any], row: MooncakeRow, number: int, where: str) -> TraceRequest:
    """``segments`` back into a skeleton; what the pieces leave of ``input_length`` is private."""
    system: Segment | None = None
    segments: list[Segment] = []
    gaps: list[Atom] = []
    gap = NO_GAP
    named: dict[str, list[Atom]] = {PRIVATE: [], OUTPUT: []}
    try:
        for piece in value["segments"]:
            name, tokens, kind = bytes.fromhex(piece["id"]), int(piece["tokens"]), piece["kind"]
            if kind == GAP:
                gap = Atom(name, tokens)
            elif kind in named:
                named[kind].append(Atom(name, tokens))
            elif kind == SegmentKind.SYSTEM and not segments and system is None:
                system = Segment(name, tokens, SegmentKind.SYSTEM)
            elif kind in _KINDS:
                run, label = piece.get("run"), str(piece.get("label", ""))
                segments.append(Segment(name, tokens, SegmentKind(kind), run, label))
                gaps.append(gap)
                gap = NO_GAP
            else:
                raise ValueError(f"unknown kind {kind!r}")
        front = sum(s.tokens for s in segments) + sum(g.tokens for g in gaps)
        front += system.tokens if system else 0
        return TraceRequest(
            str(value.get("id", f"r{number}")),
            Skeleton(system, tuple(segments), tuple(gaps), row.input_length - front),
            row.output_length,
            output=tuple(named[OUTPUT]),
            arrival_s=row.timestamp_ms / 1000,
            session=str(value.get("session", "")),
            private=tuple(named[PRIVATE]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{where}: no "segments" of a prompt: {error}') from error


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value
