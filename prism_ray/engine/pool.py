"""The KV pool that running requests and cached prefixes share; knows no batches and no queue."""

from __future__ import annotations

from prism_ray.dart import PrefixCache
from prism_ray.engine.sequence import Sequence


class KvPool:
    """Gives tokens of KV to sequences, whole pages at a time, evicting cached prefixes for room.

    A token is free, cached (owned by the tree), or held by one sequence outside the tree.
    """

    def __init__(self, size_tokens: int, cache: PrefixCache) -> None:
        self._cache = cache
        self._page = cache.tree.page_size
        self.size_tokens = size_tokens - size_tokens % self._page
        self.held_tokens = 0

    @property
    def free_tokens(self) -> int:
        return self.size_tokens - self.held_tokens - self._cache.tree.total_tokens

    @property
    def available_tokens(self) -> int:
        """What allocations can get now: free tokens, and cached ones that nobody uses."""
        return self.free_tokens + self._cache.tree.evictable_tokens

    @property
    def used_tokens(self) -> int:
        """Tokens that running requests need, shared prefixes once."""
        return self.size_tokens - self.available_tokens

    def ceil(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page

    def need(self, sequence: Sequence, kv_tokens: int) -> int:
        """Pool tokens that ``sequence`` lacks for a KV of ``kv_tokens``."""
        return max(0, self.ceil(kv_tokens) - sequence.in_tree - sequence.held)

    def make_room(self, tokens: int) -> bool:
        """Evict until ``tokens`` are free; False (and nothing evicted) if that cannot be."""
        if tokens > self.available_tokens:
            return False
        missing = tokens - self.free_tokens
        if missing > 0:
            self._cache.evict(missing)
        return True

    def grow(self, sequence: Sequence, kv_tokens: int) -> None:
        """Give ``sequence`` the room for ``kv_tokens``; ``make_room`` came before."""
        tokens = self.need(sequence, kv_tokens)
        sequence.held += tokens
        self.held_tokens += tokens

    def share(self, sequence: Sequence, kv_tokens: int) -> None:
        """Insert the first ``kv_tokens`` into the tree and lock them instead of what was locked.

        Doubles of what is cached already become free. Tokens behind the last whole page stay held.
        """
        inserted = self._cache.insert(
            sequence.path, kv_tokens, sequence.anchors, counted_tokens=sequence.counted
        )
        sequence.counted = max(sequence.counted, inserted.tokens)
        self._cache.lock(inserted.node)
        if sequence.node is not None:
            self._cache.unlock(sequence.node)
        given = inserted.tokens - sequence.in_tree
        sequence.node = inserted.node
        sequence.in_tree = inserted.tokens
        sequence.held -= given
        self.held_tokens -= given

    def release(self, sequence: Sequence) -> None:
        """Take back all that ``sequence`` holds; what it shared stays cached, unlocked."""
        self.held_tokens -= sequence.held
        sequence.held = sequence.counted = 0
        if sequence.node is not None:
            self._cache.unlock(sequence.node)
            sequence.node = None
