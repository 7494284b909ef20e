"""Replay of Mooncake's traces: prompts as chains of 512-token blocks, with their real times.

The ids are chained by prefix, so these traces have no sharing that does not begin at the front.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.data import data_path, read_json_lines, version
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton

FILE = "mooncake/conversation_trace.jsonl"
BLOCK_TOKENS = 512


class MooncakeRow(NamedTuple):
    """One line of a trace; ``timestamp_ms`` on the trace's own clock."""

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_mooncake(path: str | None = None) -> tuple[MooncakeRow, ...]:
    """The rows of a Mooncake trace in file order.

    Raises DataMissing without the file, ValueError with the line for one that is not so.
    """
    found = data_path(FILE, path)
    return _read(found, version(found))


def read_arrivals(path: str | None = None) -> list[float]:
    """The times of a Mooncake trace in seconds."""
    return [row.timestamp_ms / 1000 for row in read_mooncake(path)]


@lru_cache(maxsize=2)
def _read(path: Path, _version: tuple[int, int]) -> tuple[MooncakeRow, ...]:
    return tuple(parse_row(v, f"{path}:{n}") for n, v in enumerate(read_json_lines(path), 1))


def parse_row(value: dict[str, object], where: str) -> MooncakeRow:
    """The four keys of a line. ValueError, naming ``where``, if they are not there or do not agree."""
    at_ms, length, output = (
        value.get(key) for key in ("timestamp", "input_length", "output_length")
    )
    ids = value.get("hash_ids")
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float):
        raise ValueError(f'{where}: "timestamp" should be milliseconds, is {at_ms!r}')
    if not isinstance(length, int) or not isinstance(output, int) or length < 0 or output < 0:
        raise ValueError(f"{where}: lengths should be token counts, are {length!r} and {output!r}")
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        raise ValueError(f'{where}: "hash_ids" should be a list of integers')
    if len(ids) != -(-length // BLOCK_TOKENS):
        raise ValueError(
            f"{where}: {length} tokens do not have {len(ids)} blocks of {BLOCK_TOKENS}"
        )
    return MooncakeRow(at_ms, length, output, tuple(ids))


def from_blocks(rows: Sequence[MooncakeRow]) -> tuple[TraceRequest, ...]:
    """Requests whose segments are the blocks that more than one of ``rows`` has.

    What comes after the last shared block is the private rest: nobody else can use it.
    """
    uses = Counter(block for row in rows for block in row.hash_ids)
    start_ms = rows[0].timestamp_ms if rows else 0.0
    segments: dict[tuple[int, int], Segment] = {}
    requests: list[TraceRequest] = []
    for number, row in enumerate(rows):
        shared = max((i + 1 for i, b in enumerate(row.hash_ids) if uses[b] > 1), default=0)
        chain: list[Segment] = []
        for position, block in enumerate(row.hash_ids[:shared]):
            tokens = min(BLOCK_TOKENS, row.input_length - position * BLOCK_TOKENS)
            if (block, tokens) not in segments:
                name = digest("mooncake", block, tokens)
                segments[block, tokens] = Segment(name, tokens, SegmentKind.TEXT)
            chain.append(segments[block, tokens])
        skeleton = Skeleton(
            None,
            tuple(chain),
            (NO_GAP,) * len(chain),
            row.input_length - sum(s.tokens for s in chain),
        )
        at_s = (row.timestamp_ms - start_ms) / 1000
        requests.append(TraceRequest(f"r{number}", skeleton, row.output_length, arrival_s=at_s))
    return tuple(requests)


@TRACES.register("mooncake")
def mooncake(
    *,
    seed: int,
    count: int,
    max_prompt_tokens: int | None = None,
    path: str | None = None,
) -> Trace:
    """Consecutive requests of the conversation trace (FAST'25), the window drawn by seed.

    Requests longer than ``max_prompt_tokens`` are left out.
    """
    rows = [
        row
        for row in read_mooncake(path)
        if max_prompt_tokens is None or row.input_length <= max_prompt_tokens
    ]
    first = random.Random(f"mooncake-{seed}").randrange(max(len(rows) - count, 0) + 1)
    window = rows[first : first + count]
    notes = [
        f"{len(window)} consecutive requests from number {first} of {Path(path or FILE).name}, with "
        "real times, lengths and block ids; texts were never published",
        "blocks of one request only are counted as private",
    ]
    if max_prompt_tokens is not None:
        notes.append(f"requests above {max_prompt_tokens} prompt tokens are left out")
    if len(window) < count:
        notes.append(f"the file has no more than {len(window)} such requests")
    options = {"max_prompt_tokens": max_prompt_tokens, "path": path}
    return Trace("mooncake", seed, options, from_blocks(window), tuple(notes))
