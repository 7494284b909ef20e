"""The reference radix tree over paths of atoms: match, insert, lock, evict; no demand, no requests.

It behaves like SGLang's own (leaf-only eviction, splits on match, locks up the ancestors) but works
on pieces of atoms instead of single tokens, so a prompt of thousands of tokens costs a few steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prism_ray.dart.index import OwnerIndex
from prism_ray.dart.leaves import LeafHeap
from prism_ray.dart.node import (
    Anchor,
    ChildKey,
    Cursor,
    Node,
    Owner,
    Piece,
    first_pieces,
    owned_spans,
    path_tokens,
    split_pieces,
)
from prism_ray.dart.retention import RetentionStrategy
from prism_ray.model import Atom


class Matched(NamedTuple):
    """The longest cached prefix: its length and the node that ends there (the root for none)."""

    tokens: int
    node: Node


class Inserted(NamedTuple):
    """``existing_tokens`` of the inserted ``tokens`` were cached before; ``node`` ends the path."""

    tokens: int
    existing_tokens: int
    node: Node


class Evicted(NamedTuple):
    """What an eviction freed: leaves in the order in which they went."""

    tokens: int
    nodes: tuple[Node, ...]


class RadixTree:
    """Cached prefixes with their owners, users and access order.

    Everything is counted in tokens; with ``page_size`` > 1 matches, anchors and insertions round down
    to whole pages. The access order is a counter of operations, never a clock.
    """

    def __init__(self, strategy: RetentionStrategy, *, page_size: int = 1) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be ≥ 1, got {page_size}")
        self._strategy = strategy
        self._page = page_size
        self._leaves = LeafHeap(strategy)
        self._ticks = 0
        self._serials = 0
        self.root = Node(serial=0, parent=None, pieces=(), tokens=0, start=0, locks=1, children={})
        self.index: OwnerIndex[Node] = OwnerIndex()
        self.total_tokens = 0
        self.locked_tokens = 0

    @property
    def page_size(self) -> int:
        return self._page

    @property
    def evictable_tokens(self) -> int:
        """Tokens that eviction could free now: all that nobody has locked."""
        return self.total_tokens - self.locked_tokens

    # Matching

    def match(self, path: tuple[Atom, ...], limit: int | None = None) -> Matched:
        """Longest cached prefix of ``path``, touched and split so that a node ends exactly there.

        At most ``limit`` tokens; by default all but the last, which must be computed to get its
        logits. Splitting changes no token. Lock the node before anything is evicted.
        """
        node, cursor, left = self.root, Cursor(path), self._match_limit(path, limit)
        self._ticks += 1
        while (step := self._follow(node, cursor, left)) is not None:
            child, common = step
            if common < child.tokens:
                child = self._split(child, common)
            self._touch(child)
            cursor.advance(common)
            left -= common
            node = child
        return Matched(node.end, node)

    def peek(self, path: tuple[Atom, ...], limit: int | None = None) -> int:
        """Length that ``match`` would return; changes nothing."""
        return sum(common for _, common in self._walk(path, limit))

    def _walk(self, path: tuple[Atom, ...], limit: int | None) -> Iterator[tuple[Node, int]]:
        node, cursor, left = self.root, Cursor(path), self._match_limit(path, limit)
        while (step := self._follow(node, cursor, left)) is not None:
            node, common = step
            yield node, common
            if common < node.tokens:
                return
            cursor.advance(common)
            left -= common

    def _match_limit(self, path: tuple[Atom, ...], limit: int | None) -> int:
        tokens = path_tokens(path)
        return self._floor(max(0, tokens - 1) if limit is None else min(limit, tokens))

    def _follow(self, node: Node, cursor: Cursor, limit: int) -> tuple[Node, int] | None:
        """The child that continues at the cursor and how many tokens (whole pages) they share."""
        if limit < self._page or not node.children:
            return None
        child = node.children.get(cursor.slice(self._page))
        if child is None:
            return None
        return child, self._floor(cursor.common(child.pieces, limit))

    def _floor(self, tokens: int) -> int:
        return tokens - tokens % self._page

    # Inserting

    def insert(
        self,
        path: tuple[Atom, ...],
        tokens: int | None = None,
        anchors: Sequence[Anchor] = (),
        *,
        counted_tokens: int = 0,
    ) -> Inserted:
        """Cache the first ``tokens`` of ``path`` (all by default), split at ``anchors``.

        Anchors ascend by offset; what lies behind the last is private. The uses of the first
        ``counted_tokens`` are not counted: the same request inserted them before, as a chunk of its
        prefill. New tokens are unlocked.
        """
        end = self._floor(path_tokens(path) if tokens is None else tokens)
        spans = owned_spans(anchors if self._strategy.uses_anchors else (), end, self._page)
        node, cursor, position, existing = self.root, Cursor(path), 0, 0
        self._ticks += 1
        for stop, owner, whole in spans:
            span_start = position
            while position < stop:
                step = self._follow(node, cursor, stop - position)
                if step is None:
                    child = self._grow(node, cursor.slice(stop - position))
                else:
                    child, common = step
                    if common < child.tokens:
                        child = self._split(child, common)
                    existing += common
                self._own(child, owner, span_start, anchored=whole and child.end == stop)
                child.hits += child.end > counted_tokens
                self._touch(child)
                cursor.advance(child.tokens)
                position = child.end
                node = child
        return Inserted(end, existing, node)

    def _grow(self, parent: Node, pieces: tuple[Piece, ...]) -> Node:
        tokens = sum(piece.length for piece in pieces)
        node = self._new_node(parent, pieces, tokens, parent.end)
        self._leaves.discard(parent)
        self._children(parent)[self._child_key(pieces)] = node
        self.total_tokens += tokens
        return node

    def _split(self, node: Node, tokens: int) -> Node:
        """Cut ``node`` after ``tokens`` of its tokens; the new upper part is returned.

        The lower part stays the same object: it ends where it ended, so whoever holds it as the end
        of a prefix still does.
        """
        parent = node.parent
        assert parent is not None
        upper_pieces, lower_pieces = split_pieces(node.pieces, tokens)
        upper = self._new_node(parent, upper_pieces, tokens, node.start)
        upper.last_access, upper.hits, upper.locks = node.last_access, node.hits, node.locks
        upper.protected = node.protected
        self._children(parent)[self._child_key(upper_pieces)] = upper
        upper.children = {self._child_key(lower_pieces): node}
        node.parent, node.pieces = upper, lower_pieces
        node.tokens -= tokens
        node.start += tokens
        upper.owner, upper.span_start = node.owner, node.span_start
        self.index.shrink(node, tokens)
        self.index.add(upper)
        if not self._strategy.uses_anchors:
            # SGLang's own tree dates the lower part of a split to now (choice A13: be that tree).
            self._touch(node)
        return upper

    def _new_node(self, parent: Node, pieces: tuple[Piece, ...], tokens: int, start: int) -> Node:
        self._serials += 1
        return Node(self._serials, parent, pieces, tokens, start)

    def _own(self, node: Node, owner: Owner, span_start: int, *, anchored: bool) -> None:
        node.anchored = node.anchored or anchored
        if owner == node.owner or owner.kind < node.kind:
            return
        node.protected = False
        self.index.change_owner(node, owner, span_start)

    def _touch(self, node: Node) -> None:
        node.last_access = self._ticks
        if not node.locks and not node.children:
            self._leaves.update(node)

    @staticmethod
    def _children(node: Node) -> dict[ChildKey, Node]:
        if node.children is None:
            node.children = {}
        return node.children

    def _child_key(self, pieces: tuple[Piece, ...]) -> ChildKey:
        return first_pieces(pieces, self._page)

    def evictable(self) -> Iterator[Node]:
        """The leaves that nobody uses, in the order in which they came to be so."""
        return iter(self._leaves)

    def rekey(self, nodes: Iterable[Node]) -> None:
        """Evaluate the keys of ``nodes`` again: what the strategy knows about them has changed."""
        for node in nodes:
            if node in self._leaves:
                self._leaves.update(node)

    # Locks

    def lock(self, node: Node) -> None:
        """Keep ``node`` and all above it until ``unlock``; locks count."""
        for each in node.ancestors():
            if each.locks == 0:
                self.locked_tokens += each.tokens
                self._leaves.discard(each)
            each.locks += 1

    def unlock(self, node: Node) -> None:
        """Take one lock back. Raises ValueError if there is none."""
        for each in node.ancestors():
            if each.locks == 0:
                raise ValueError(f"{each} is not locked")
            each.locks -= 1
            if each.locks == 0:
                self.locked_tokens -= each.tokens
                if not each.children:
                    self._leaves.update(each)

    def _is_evictable_leaf(self, node: Node) -> bool:
        return node.locks == 0 and not node.children

    # Evicting

    def evict(self, tokens: int) -> Evicted:
        """Free at least ``tokens`` tokens, whole leaves by the strategy's order, or all that can be."""
        freed, gone = 0, []
        while freed < tokens and (node := self._leaves.pop()) is not None:
            self._remove(node)
            freed += node.tokens
            gone.append(node)
        return Evicted(freed, tuple(gone))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        assert parent.children is not None
        del parent.children[self._child_key(node.pieces)]
        self.index.remove(node)
        node.protected = False
        self.total_tokens -= node.tokens
        if self._is_evictable_leaf(parent):
            self._leaves.update(parent)

    def eviction_order(self) -> tuple[Node, ...]:
        """All unlocked nodes in the order in which ``evict`` would free them; changes nothing."""
        children = {node.serial: len(node.children or ()) for node in self}
        heap = [(self._strategy.key(leaf), leaf.serial, leaf) for leaf in self._leaves]
        heapq.heapify(heap)
        order = []
        while heap:
            _, _, node = heapq.heappop(heap)
            order.append(node)
            parent = node.parent
            if parent is None or parent is self.root:
                continue
            children[parent.serial] -= 1
            if children[parent.serial] == 0 and parent.locks == 0:
                heapq.heappush(heap, (self._strategy.key(parent), parent.serial, parent))
        return tuple(order)

    # Looking

    def __iter__(self) -> Iterator[Node]:
        """All nodes but the root, parents first, in a fixed order."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            if node.children:
                stack.extend(reversed(node.children.values()))

    def check_integrity(self) -> None:
        """Raise AssertionError if a total, an index, a lock or the heap differs from a recount."""
        total = locked = 0
        for node in self:
            parent = node.parent
            assert parent is not None
            assert parent.children is not None
            assert parent.children[self._child_key(node.pieces)] is node
            assert node.tokens == sum(piece.length for piece in node.pieces) > 0
            assert node.tokens % self._page == 0
            assert node.start == parent.end
            assert 0 <= node.locks <= max(parent.locks, node.locks * (parent is self.root))
            assert (node in self._leaves) == self._is_evictable_leaf(node), f"heap misses {node}"
            total += node.tokens
            locked += node.tokens * (node.locks > 0)
        assert (total, locked) == (self.total_tokens, self.locked_tokens)
        self.index.check_integrity(self)
        self._leaves.check_integrity()
