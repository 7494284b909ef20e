"""What a replica's KV-cache is believed to hold, predicted from what was sent to it alone.

The `fallback` of ``residency``: no truth from the engine, so an LRU of segment paths stands in for
its radix tree. Knows path atoms only; never changes an engine's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest

from prism_ray.dispatch.residency import Remembered, ResidencyState
from prism_ray.model import Atom
from prism_ray.scheduling import Match


@dataclass(slots=True)
class _Node:
    key: int
    place: tuple[int, bytes]
    parent: _Node | None
    tokens: int
    children: int = 0
    last_use: int = 0
    computed: bool = False
    holders: int = 0


class PredictedResidency:
    """A token-bounded LRU over segment paths; leaves go first, paths in flight stay.

    A sent request's path is *computing* until its prefill ended, then *cached*. The engine matches
    only what was inserted before a batch was formed, so both are told apart.
    """

    state = ResidencyState.FALLBACK

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, bytes], _Node] = {}
        self._in_flight: dict[str, list[_Node]] = {}
        self._leaves: list[tuple[int, int, tuple[int, bytes]]] = []
        self._next_key = 1
        self._uses = 0
        self.tokens = 0
        self.held_tokens = 0

    def match(self, path: tuple[Atom, ...]) -> Match:
        cached = computing = 0
        parent, all_computed = 0, True
        for atom in path:
            node = self._nodes.get((parent, atom.id))
            if node is None:
                break
            all_computed = all_computed and node.computed
            computing += node.tokens
            if all_computed:
                cached += node.tokens
            parent = node.key
        return Match(cached, computing)

    def send(self, request_id: str, path: tuple[Atom, ...], room_tokens: int) -> Match:
        """Note that a request on ``path`` was sent; returns what it could match before.

        ``room_tokens`` is what the replica's running requests leave for reusable tokens that nobody
        holds right now; older leaves are given up to stay within it.
        """
        match = self.match(path)
        self._uses += 1
        held: list[_Node] = []
        parent: _Node | None = None
        for atom in path:
            place = (parent.key if parent else 0, atom.id)
            node = self._nodes.get(place)
            if node is None:
                node = _Node(self._next_key, place, parent, atom.tokens)
                self._next_key += 1
                self._nodes[place] = node
                self.tokens += atom.tokens
                if parent is not None:
                    parent.children += 1
            node.last_use = self._uses
            if not node.holders:
                self.held_tokens += node.tokens
            node.holders += 1
            held.append(node)
            parent = node
        self._in_flight[request_id] = held
        self._evict_to(max(room_tokens, 0))
        return match

    def prefill_ended(self, request_id: str) -> None:
        """The request's path is inserted: later batches can match it."""
        for node in self._in_flight.get(request_id, ()):
            node.computed = True

    def release(self, request_id: str) -> None:
        """The request left; what it did not finish computing is not there."""
        for node in reversed(self._in_flight.pop(request_id, [])):
            node.holders -= 1
            if node.holders:
                continue
            self.held_tokens -= node.tokens
            if not node.computed and not node.children:
                self._drop(node)
            else:
                self._push(node)

    def clear(self) -> None:
        """Forget all that no request in flight holds (the engine's cache was flushed)."""
        self._evict_to(0)

    def remember(self, limit: int) -> list[Remembered]:
        """See Residency. Only what was computed; parents are older than their children or as old."""
        computed = (node for node in self._nodes.values() if node.computed)
        newest = nsmallest(limit, computed, key=lambda node: (-node.last_use, node.key))
        rows: dict[int, int] = {}
        found: list[Remembered] = []
        for node in newest:
            parent = node.parent
            before = -1 if parent is None else rows.get(parent.key)
            if before is not None:
                rows[node.key] = len(found)
                found.append(Remembered(before, node.place[1], node.tokens))
        return found

    def recall(self, rows: Sequence[Remembered], room_tokens: int) -> None:
        """See Residency."""
        nodes: list[_Node] = []
        added: list[_Node] = []
        for number, row in enumerate(rows):
            parent = nodes[row.before] if row.before >= 0 else None
            place = (parent.key if parent else 0, row.key)
            node = self._nodes.get(place)
            if node is None:
                # Times before the first use here, the newest row's the latest.
                node = _Node(self._next_key, place, parent, row.tokens, last_use=-number)
                self._next_key += 1
                self._nodes[place] = node
                self.tokens += node.tokens
                if parent is not None:
                    parent.children += 1
                added.append(node)
            node.computed = True
            nodes.append(node)
        for node in added:
            self._push(node)
        self._evict_to(room_tokens)

    def check_integrity(self) -> None:
        """Raise AssertionError unless tokens, children and holders equal a recount."""
        nodes = self._nodes.values()
        assert self.tokens == sum(n.tokens for n in nodes)
        assert self.held_tokens == sum(n.tokens for n in nodes if n.holders)
        children: dict[int, int] = {}
        for node in self._nodes.values():
            if node.parent is not None:
                children[node.parent.key] = children.get(node.parent.key, 0) + 1
        holders: dict[int, int] = {}
        for held in self._in_flight.values():
            for node in held:
                holders[node.key] = holders.get(node.key, 0) + 1
        for place, node in self._nodes.items():
            assert node.place == place
            assert node.children == children.get(node.key, 0)
            assert node.holders == holders.get(node.key, 0)

    def _push(self, node: _Node) -> None:
        if not node.children and not node.holders:
            heappush(self._leaves, (node.last_use, node.key, node.place))

    def _drop(self, node: _Node) -> None:
        del self._nodes[node.place]
        self.tokens -= node.tokens
        if node.parent is not None:
            node.parent.children -= 1
            self._push(node.parent)

    def _evict_to(self, room_tokens: int) -> None:
        while self._leaves and self.tokens - self.held_tokens > room_tokens:
            last_use, key, place = heappop(self._leaves)
            node = self._nodes.get(place)
            # The heap is lazy: an entry counts only while it still describes its leaf.
            if (
                node is not None
                and node.key == key
                and node.last_use == last_use
                and not node.children
                and not node.holders
            ):
                self._drop(node)
