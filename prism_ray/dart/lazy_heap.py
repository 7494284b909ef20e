"""A heap for leaves whose keys mostly grow: a key is looked at again when its node comes up."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from prism_ray.dart.retention import Key

_COMPACT_BELOW = 64


class Queued(Protocol):
    """``queued_key`` belongs to the heap: the key under which a node waits, None while it doesn't."""

    queued_key: Key | None

    @property
    def serial(self) -> int: ...


Q = TypeVar("Q", bound=Queued)


class LazyLeafHeap(Generic[Q]):
    """Nodes by (key, creation), smallest first, where touching a node costs nothing.

    SGLang touches every node of a path on every match; recency only ever grows, so a node that was
    touched waits under its old, smaller key and is put back when it comes up. Only a key that may have
    become *smaller* (demand changed) must be offered again. O(log V) a change, amortized.
    """

    def __init__(self, key: Callable[[Q], Key]) -> None:
        self._key = key
        self._heap: list[tuple[Key, int, int, Q]] = []
        self._pushes = 0  # makes entries distinct, so that nodes are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: Q) -> None:
        """A node may be taken from now on, or its key may have become smaller."""
        key = self._key(node)
        if node.queued_key is None or key < node.queued_key:
            self._push(node, key)

    def pop(self, takeable: Callable[[Q], bool]) -> Q | None:
        """Remove and return the node with the smallest key now; nodes that may not be taken drop out."""
        heap = self._heap
        while heap:
            queued, _, _, node = heapq.heappop(heap)
            if node.queued_key != queued:
                continue
            node.queued_key = None
            if not takeable(node):
                continue
            key = self._key(node)
            if key <= queued:
                return node
            self._push(node, key)
        return None

    def compact(self, nodes: int, leaves: Callable[[], Iterable[Q]]) -> None:
        """Drop outdated entries once they outnumber the tree's ``nodes``; ``leaves`` stay."""
        if len(self._heap) <= 2 * nodes + _COMPACT_BELOW:
            return
        for _, _, _, node in self._heap:
            node.queued_key = None
        self._heap.clear()
        for node in leaves():
            self.offer(node)

    def _push(self, node: Q, key: Key) -> None:
        node.queued_key = key
        self._pushes += 1
        heapq.heappush(self._heap, (key, node.serial, self._pushes, node))
