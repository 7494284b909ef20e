"""A bounded memory of texts' token ids, by digest: it holds numbers, never text."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


class TokenCache:
    """Least recently used out first; bounded by the tokens it holds. Safe to share between threads."""

    def __init__(self, max_tokens: int = 1_000_000) -> None:
        self._max_tokens = max_tokens
        self._held_tokens = 0
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: bytes, compute: Callable[[], Iterable[int]]) -> array[int]:
        """The ids under ``key``, computed if they are not held; the array must not be changed."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                self.hits += 1
                return found
            self.misses += 1
        ids = array("I", compute())
        with self._lock:
            self._put(key, ids)
        return ids

    def _put(self, key: bytes, ids: array[int]) -> None:
        weight = _weight(ids)
        if weight > self._max_tokens or key in self._entries:
            return
        self._entries[key] = ids
        self._held_tokens += weight
        while self._held_tokens > self._max_tokens:
            _, dropped = self._entries.popitem(last=False)
            self._held_tokens -= _weight(dropped)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_tokens(self) -> int:
        return self._held_tokens

    def check_integrity(self) -> None:
        """Raise AssertionError if the bound is broken or differs from a recount."""
        assert self._held_tokens == sum(_weight(ids) for ids in self._entries.values())
        assert self._held_tokens <= self._max_tokens


def _weight(ids: Sequence[int]) -> int:
    """Tokens charged for an entry: its own, and what keeping any entry costs."""
    return len(ids) + 32
