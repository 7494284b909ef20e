"""From an engine call's token ids to the path of atoms that the reference tree works on."""

from __future__ import annotations

import hashlib
from array import array
from itertools import pairwise

from prism_ray.engine.base import EngineCall
from prism_ray.model import Atom

_DIGEST_BYTES = 16


def digest_of(ids: bytes | memoryview, salt: str = "") -> bytes:
    """Digest of token ids, in a namespace of its own for each salt (at most 64 bytes)."""
    return hashlib.blake2b(ids, digest_size=_DIGEST_BYTES, key=salt.encode()).digest()


def ids_bytes(prompt_ids: list[int]) -> bytes:
    """Token ids as bytes, 8 each."""
    return array("q", prompt_ids).tobytes()


def call_path(call: EngineCall, ids: bytes, block_tokens: int) -> tuple[Atom, ...]:
    """Atoms named by the digest of their own tokens, cut at boundaries and every ``block_tokens``.

    Equal tokens at the same place between boundaries are equal atoms, if the salt is equal too. Two
    prompts that part inside a block share nothing of that block: a hit is short of a real engine's
    by less than a block where prompts part elsewhere than at a boundary. Raises ValueError for
    boundaries out of order.
    """
    width = 8
    view = memoryview(ids)
    atoms = []
    for start, stop in pairwise(_cuts(call)):
        for first in range(start, stop, block_tokens):
            last = min(first + block_tokens, stop)
            block = view[first * width : last * width]
            atoms.append(Atom(digest_of(block, call.cache_salt), last - first))
    return tuple(atoms)


def _cuts(call: EngineCall) -> list[int]:
    end = len(call.prompt_ids)
    cuts = [0, *call.boundaries, end]
    if any(a > b for a, b in pairwise(cuts)):
        raise ValueError(f"boundaries {call.boundaries} do not ascend to {end} tokens")
    return cuts
