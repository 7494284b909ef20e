"""The best that a finite pool can do with requests in a fixed order, one after another (bound B2)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from loadgen.bounds.blocks import Block

_NEVER = float("inf")


def belady_hits(blocks: Sequence[Block], requests: int, capacity: int) -> int:
    """Hit tokens under furthest-next-use eviction, the deepest first among equals. Exact.

    Requests 0 … ``requests`` - 1 are served in turn; each holds its whole prompt and what it generates
    while it is served. Since whoever uses a block uses all before it, the block of furthest next use
    is always a leaf. ValueError if one request does not fit. O(uses · log blocks).
    """
    own: list[list[int]] = [[] for _ in range(requests)]
    next_users: list[list[int]] = []
    for number, block in enumerate(blocks):
        next_users.append(block.users[::-1])
        for each in sorted({*block.users, *block.makers}):
            own[each].append(number)
    resident = [0] * len(blocks)
    # Furthest next use first, then the deepest. An entry that is older than its block's last use says
    # too near a next use and comes up never before the newer one; then its block is not resident.
    furthest: list[tuple[float, int, int]] = []
    hits = tokens = 0
    for request in range(requests):
        for number in own[request]:
            block, users = blocks[number], next_users[number]
            if users and users[-1] == request:
                users.pop()
                hits += resident[number] if block.hittable else 0
            tokens += block.tokens - resident[number]
            resident[number] = block.tokens
        held = set(own[request])
        while tokens > capacity:
            if not furthest:
                raise ValueError("a request does not fit the pool")
            number = furthest[0][2]
            over = tokens - capacity
            gone = 0 if number in held else min(over, resident[number])
            resident[number] -= gone
            tokens -= gone
            if number in held or not resident[number]:
                heappop(furthest)
        for number in own[request]:
            users = next_users[number]
            next_use = users[-1] if users else _NEVER
            heappush(furthest, (-next_use, -blocks[number].depth, number))
    return hits
