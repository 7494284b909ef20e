"""The best that a finite pool can do with requests in a fixed order, one after another (bound B2)."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.bounds.blocks import Block

_NEVER = float("inf")


def belady_hits(blocks: Sequence[Block], requests: int, capacity: int) -> int:
    """Hit tokens under furthest-next-use eviction, the deepest first among equals. Exact.

    Requests 0 … ``requests`` - 1 are served in turn; each holds its whole prompt and what it generates
    while it is served. Since whoever uses a block uses all before it, the block of furthest next use
    is always a leaf. ValueError if one request does not fit.
    """
    used: list[list[int]] = [[] for _ in range(requests)]
    made: list[list[int]] = [[] for _ in range(requests)]
    for number, block in enumerate(blocks):
        for user in block.users:
            used[user].append(number)
        for maker in block.makers:
            made[maker].append(number)
    resident: dict[int, int] = {}
    hits = 0
    positions = [0] * len(blocks)
    for request in range(requests):
        hits += sum(resident.get(n, 0) for n in used[request] if blocks[n].hittable)
        own = {*used[request], *made[request]}
        for number in used[request]:
            positions[number] += 1
        resident.update((number, blocks[number].tokens) for number in own)
        _evict(blocks, positions, resident, own, capacity)
    return hits


def _evict(
    blocks: Sequence[Block],
    positions: Sequence[int],
    resident: dict[int, int],
    own: set[int],
    capacity: int,
) -> None:
    over = sum(resident.values()) - capacity
    if over <= 0:
        return
    others = sorted(
        (number for number in resident if number not in own),
        key=lambda number: (_next_use(blocks[number], positions[number]), blocks[number].depth),
        reverse=True,
    )
    for number in others:
        cut = min(over, resident[number])
        resident[number] -= cut
        over -= cut
        if not resident[number]:
            del resident[number]
        if not over:
            return
    raise ValueError("a request does not fit the pool")


def _next_use(block: Block, position: int) -> float:
    return block.users[position] if position < len(block.users) else _NEVER
