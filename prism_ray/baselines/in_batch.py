"""SGLang's in-batch rule: of waiting requests that share an uncached prefix one goes, others wait."""

from __future__ import annotations

from collections.abc import Sequence

from prism_ray.ranking import Path, Waiting

CHECKED_TOKENS = 32
"""Requests with at most so many cached tokens are looked at (IN_BATCH_PREFIX_CACHING_CHECK_...)."""
SHARED_TOKENS = 32
"""So many tokens shared with an earlier one hold a request back (..._DEPRIORITIZE_THRESHOLD)."""


def held_back(queue: Sequence[Waiting], cached_tokens: Sequence[int]) -> set[str]:
    """Ids of those that wait for another's prefill, from the requests in queue order.

    ``cached_tokens`` are whole matches, the last token of a prompt included. What counts is what is
    shared with requests before it that were not held back themselves, in whole atoms.
    """
    held: set[str] = set()
    seen: dict[tuple[int, bytes], int] = {}
    for waiting, cached in zip(queue, cached_tokens, strict=True):
        if cached > CHECKED_TOKENS:
            continue
        if _shared(waiting.path, seen) >= SHARED_TOKENS:
            held.add(waiting.id)
        else:
            _insert(waiting.path, seen)
    return held


def _shared(path: Path, seen: dict[tuple[int, bytes], int]) -> int:
    node: int | None = 0
    tokens = 0
    for atom in path:
        node = seen.get((node or 0, atom.id))
        if node is None:
            break
        tokens += atom.tokens
    return tokens


def _insert(path: Path, seen: dict[tuple[int, bytes], int]) -> None:
    node = 0
    for atom in path:
        node = seen.setdefault((node, atom.id), len(seen) + 1)
