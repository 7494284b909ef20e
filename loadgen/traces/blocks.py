"""Prompts as chained 512-token blocks, the way Mooncake's traces name them. Knows no file format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from loadgen.traces.base import TraceRequest
from loadgen.traces.mooncake import BLOCK_TOKENS
from prism_ray.model import Atom


def hash_ids(requests: Sequence[TraceRequest]) -> list[list[int]]:
    """For each request the ids of its blocks: equal where all tokens up to the block's end are.

    Ids count up from 0 in the order of first use. The last block may be shorter than the others.
    """
    numbers: dict[bytes, int] = {}
    return [
        [numbers.setdefault(block, len(numbers)) for block in _blocks(request.prompt())]
        for request in requests
    ]


def _blocks(prompt: Sequence[Atom]) -> Iterator[bytes]:
    chain = hashlib.blake2b(digest_size=16)
    room = BLOCK_TOKENS
    for atom in prompt:
        start = 0
        while start < atom.tokens:
            end = min(atom.tokens, start + room)
            chain.update(b"%d:%b %d %d\n" % (len(atom.id), atom.id, start, end))
            room -= end - start
            start = end
            if room == 0:
                yield chain.digest()
                room = BLOCK_TOKENS
    if room < BLOCK_TOKENS:
        yield chain.digest()
