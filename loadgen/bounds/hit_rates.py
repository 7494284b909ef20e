"""The bounds B0 to B4 themselves, from prompts to a share of their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from loadgen.bounds.belady import belady_hits
from loadgen.bounds.blocks import Block, Prompt, path_blocks, segment_blocks
from loadgen.bounds.packing import Interval, packed_tokens
from loadgen.bounds.spanning import common_tokens, heaviest_tree

B1_REQUESTS_MAX = 5000
"""B1 is quadratic in the requests; above this it is not computed."""


def b0(prompts: Sequence[Prompt], page_size: int = 1) -> float:
    """Infinite pool, prompts as they are written, any order of requests.

    Every block but the first copy of each is hit: 1 - (tokens of the trie) / (all tokens).
    """
    return _share(sum(_hits_ever(block) for block in path_blocks(prompts, page_size)), prompts)


def b1(prompts: Sequence[Prompt], page_size: int = 1, *, movable: bool = True) -> float | None:
    """Infinite pool, any order of requests and of segments; None for over ``B1_REQUESTS_MAX`` prompts.

    A prompt's hit lies on one earlier prompt's path, so all hits together are at most a maximum
    spanning tree over what pairs have in common. Segments count as movable everywhere; where nothing
    is (``movable`` False), this is B0.
    """
    if not movable:
        return b0(prompts, page_size)
    if len(prompts) > B1_REQUESTS_MAX:
        return None
    return _share(heaviest_tree(common_tokens(prompts, page_size)), prompts)


def b2(prompts: Sequence[Prompt], pool_tokens: int, page_size: int = 1) -> float:
    """Finite pool, prompts as written, served one by one in the order given. ValueError if one does
    not fit the pool."""
    blocks = path_blocks(prompts, page_size)
    return _share(belady_hits(blocks, len(prompts), pool_tokens), prompts)


def b3(
    prompts: Sequence[Prompt],
    pool_tokens: int,
    wait_s: float,
    page_size: int = 1,
    *,
    finish_s: float | None = None,
    replicas: int = 1,
    working: int | None = None,
) -> float:
    """Finite pool, prompts as written, any order that gets each going within ``wait_s`` of its arrival.

    What a prompt brings into the pool is there ``wait_s`` after its arrival, what it generates
    ``finish_s`` after it (by default as early as the prompt). ``pool_tokens`` is one replica's;
    several have their pools together, and each that is ``working``, by default all, computes what all
    prompts start with once. A placement may leave replicas without any prompt.
    """
    working = replicas if working is None else working
    blocks = path_blocks(prompts, page_size)
    hits = _packed_hits(prompts, blocks, pool_tokens * replicas, wait_s, finish_s)
    if working > 1:
        pool = pool_tokens * replicas
        everywhere = [block for block in blocks if len(block.users) == len(prompts)]
        others = [block for block in blocks if len(block.users) < len(prompts)]
        most = sum(b.tokens * max(0, len(prompts) - working) for b in everywhere)
        hits = min(hits, most + _packed_hits(prompts, others, pool, wait_s, finish_s))
    return _share(hits, prompts)


def b4(
    prompts: Sequence[Prompt],
    pool_tokens: int,
    wait_s: float,
    page_size: int = 1,
    *,
    finish_s: float | None = None,
    movable: bool = True,
    known_b1: float | None = None,
) -> float:
    """Finite pool, any order of requests within ``wait_s`` and of segments: B1, or B3 over segments
    that need no front, whichever is less; B3 itself where no segment is ``movable``.

    ``known_b1`` saves computing B1 again, which takes the longest.
    """
    if not movable:
        return b3(prompts, pool_tokens, wait_s, page_size, finish_s=finish_s)
    hits = _packed_hits(prompts, segment_blocks(prompts), pool_tokens, wait_s, finish_s)
    loose = _share(hits, prompts)
    tight = b1(prompts, page_size) if known_b1 is None else known_b1
    return loose if tight is None else min(loose, tight)


def _share(tokens: int, prompts: Iterable[Prompt]) -> float:
    total = sum(prompt.tokens for prompt in prompts)
    return tokens / total if total else 0.0


def _hits_ever(block: Block) -> int:
    if not block.hittable:
        return 0
    first = 0 if block.makers else 1
    return block.tokens * max(0, len(block.users) - first)


def _packed_hits(
    prompts: Sequence[Prompt],
    blocks: Sequence[Block],
    pool_tokens: int,
    wait_s: float,
    finish_s: float | None,
) -> int:
    """Hits of blocks whose uses fall anywhere between arrival and ``wait_s`` later.

    Uses that may overlap in time hit each other for nothing, but for the first. Between two such
    groups the block has to stay: from when the former may have come last to when the latter may
    start. A group in which it is generated needs no former one.
    """
    free = 0
    intervals: list[Interval] = []
    for block in (block for block in blocks if block.hittable):
        before_s: float | None = None
        for start_s, end_s, uses, made in _groups(prompts, block, wait_s, finish_s):
            free += block.tokens * (uses if made else max(0, uses - 1))
            if uses and not made and before_s is not None:
                intervals.append(Interval(before_s, start_s, block.tokens))
            before_s = end_s
    return free + packed_tokens(intervals, pool_tokens)


def _groups(
    prompts: Sequence[Prompt], block: Block, wait_s: float, finish_s: float | None
) -> Iterable[tuple[float, float, int, bool]]:
    """(earliest, latest, uses, is it generated) of groups of uses that may overlap, ascending."""
    until_made_s = wait_s if finish_s is None else finish_s
    events = sorted(
        chain(
            ((prompts[n].arrival_s, prompts[n].arrival_s + wait_s, 1) for n in block.users),
            ((prompts[n].arrival_s, prompts[n].arrival_s + until_made_s, 0) for n in block.makers),
        )
    )
    start_s, end_s, uses, made = events[0][0], events[0][1], 0, False
    for arrival_s, latest_s, is_use in events:
        if arrival_s > end_s:
            yield start_s, end_s, uses, made
            start_s, end_s, uses, made = arrival_s, latest_s, 0, False
        end_s = max(end_s, latest_s)
        uses += is_use
        made = made or not is_use
    yield start_s, end_s, uses, made
