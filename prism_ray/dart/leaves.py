"""The heap of evictable leaves: O(log V) a change, keys always fresh; knows no tree."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from prism_ray.dart.node import Node
from prism_ray.dart.retention import Key, RetentionStrategy

_COMPACT_BELOW = 64


class LeafHeap:
    """Leaves ordered by (strategy key, creation); stale entries are skipped and compacted lazily.

    An entry is valid while its key is the node's ``heap_key``. ``update`` must be called whenever a
    leaf's key may have changed, so the key in the heap equals the key computed now.
    """

    def __init__(self, strategy: RetentionStrategy) -> None:
        self._strategy = strategy
        self._heap: list[tuple[Key, int, int, Node]] = []
        self._pushes = 0  # makes entries distinct, so that nodes are never compared
        self._live: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, node: Node) -> bool:
        return node.serial in self._live

    def __iter__(self) -> Iterator[Node]:
        """Live leaves in the order in which they became evictable."""
        return iter(self._live.values())

    def update(self, node: Node) -> None:
        """Add a leaf, or evaluate its key again."""
        key = self._strategy.key(node)
        if node.heap_key == key:
            return
        node.heap_key = key
        self._live[node.serial] = node
        self._pushes += 1
        heapq.heappush(self._heap, (key, node.serial, self._pushes, node))
        if len(self._heap) > 2 * len(self._live) + _COMPACT_BELOW:
            self._compact()

    def discard(self, node: Node) -> None:
        if self._live.pop(node.serial, None) is not None:
            node.heap_key = None

    def pop(self) -> Node | None:
        """Remove and return the leaf with the smallest key, None if there is none."""
        while self._heap:
            key, _, _, node = heapq.heappop(self._heap)
            if node.heap_key == key:
                self.discard(node)
                return node
        return None

    def _compact(self) -> None:
        self._heap = [
            (n.heap_key, s, 0, n) for s, n in self._live.items() if n.heap_key is not None
        ]
        heapq.heapify(self._heap)

    def check_integrity(self) -> None:
        for serial, node in self._live.items():
            assert node.serial == serial
            assert node.heap_key == self._strategy.key(node), f"stale key of {node}"
        entries = {(serial, key) for key, serial, _, _ in self._heap}
        for serial, node in self._live.items():
            assert (serial, node.heap_key) in entries, f"{node} is missing from the heap"
