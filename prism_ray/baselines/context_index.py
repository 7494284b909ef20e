"""ContextPilot's live index: contexts come in batches, are matched, reordered, inserted, scheduled."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from prism_ray.baselines.context_tree import Context, ContextTree, Node, build, distance

Steps = tuple[int, ...]
"""A way down from the root: which child at each level."""


_ROOT: Steps = ()


class Scheduled(NamedTuple):
    """A context of a batch: its place in the batch, and the order its documents are written in."""

    place: int
    docs: Context


class _Found(NamedTuple):
    node: Node
    steps: Steps
    starts_inside: bool


class ContextIndex:
    """A tree of the last ``contexts_max`` contexts.

    ``add`` matches each context of a batch from the root down, writes what it shares with the matched
    node first, and inserts it there; contexts that match nothing form a tree of their own, whose
    subtrees come under the root.
    """

    def __init__(self, contexts_max: int = 4096) -> None:
        self._contexts_max = contexts_max
        self._root: Node | None = None
        self._inserted: deque[Node] = deque()

    def __len__(self) -> int:
        """Number of contexts in the index."""
        return len(self._inserted)

    def add(self, contexts: Sequence[Context]) -> list[Scheduled]:
        """Insert a batch; returns it in the order in which it should run."""
        if not contexts:
            return []
        scheduled = self._first(contexts) if self._root is None else self._next(contexts)
        while len(self._inserted) > self._contexts_max:
            _prune(self._inserted.popleft())
        return scheduled

    def _first(self, contexts: Sequence[Context]) -> list[Scheduled]:
        tree = build(contexts)
        self._root = tree.root
        self._remember(tree)
        orders = tree.reordered(contexts)
        ways = [_steps_to(leaf) for leaf in tree.leaves]
        groups: dict[int, list[int]] = {}
        for place, steps in enumerate(ways):
            groups.setdefault(steps[0] if steps else -1, []).append(place)
        for group in groups.values():
            group.sort(key=lambda place: (-len(ways[place]), ways[place], place))
        largest_first = sorted(groups.values(), key=lambda group: (-len(group), group[0]))
        return [Scheduled(place, orders[place]) for group in largest_first for place in group]

    def _next(self, contexts: Sequence[Context]) -> list[Scheduled]:
        found = [self._search(context) for context in contexts]
        rows: list[tuple[Steps, Scheduled]] = []
        for place, match in enumerate(found):
            if match is not None:
                docs = _matched_first(contexts[place], match.node.docs)
                rows.append((self._insert(docs, match), Scheduled(place, docs)))
        alone = [place for place, match in enumerate(found) if match is None]
        if alone:
            tree = build([contexts[place] for place in alone])
            orders = tree.reordered([contexts[place] for place in alone])
            ways = self._graft(tree, [contexts[place] for place in alone])
            for place, docs, steps in zip(alone, orders, ways, strict=True):
                rows.append((steps, Scheduled(place, docs)))
        rows.sort(key=lambda row: (row[0][0] if row[0] else -1, -len(row[0])))
        return [scheduled for _, scheduled in rows]

    def _remember(self, tree: ContextTree) -> None:
        leaves = {id(leaf): leaf for leaf in tree.leaves if leaf is not None}
        self._inserted.extend(leaves.values())

    def _search(self, context: Context) -> _Found | None:
        """Down the children that are nearest while the first document of each is in the context."""
        assert self._root is not None
        content = frozenset(context)
        node, steps = self._root, _ROOT
        while True:
            best: tuple[np.float32, int] | None = None
            for step, child in enumerate(node.children):
                if not content.isdisjoint(child.docs):
                    near = np.float32(distance(context, child.docs)), step
                    best = near if best is None else min(best, near)
            if best is None:
                inside = node is not self._root and not content.isdisjoint(node.docs)
                return _Found(node, steps, True) if inside else None
            node, steps = node.children[best[1]], (*steps, best[1])
            starts_inside = node.docs[0] in content
            if not starts_inside or not node.children:
                return _Found(node, steps, starts_inside)

    def _insert(self, docs: Context, match: _Found) -> Steps:
        """Put a leaf where the match says; earlier ones of the batch may have split what was found."""
        steps = match.steps if match.starts_inside else match.steps[:-1]
        node = self._walk(steps)
        if node is None:
            node, steps = self._require_root(), ()
        if match.starts_inside and not node.children and node.parent is not None:
            shared = tuple(
                a
                for a, _ in takewhile(
                    lambda pair: pair[0] == pair[1], zip(node.docs, docs, strict=False)
                )
            )
            if shared and not (shared == node.docs and frozenset(docs) == frozenset(node.docs)):
                return self._split(node, shared, docs, steps)
        if not node.children and node.parent is not None:
            node, steps = node.parent, steps[:-1]
        return self._append(node, docs, steps)

    def _split(self, leaf: Node, shared: Context, docs: Context, steps: Steps) -> Steps:
        parent = leaf.parent
        assert parent is not None
        between = Node(frozenset(shared), shared, children=[leaf], parent=parent)
        parent.children[parent.children.index(leaf)] = between
        leaf.parent = between
        return self._append(between, docs, steps)

    def _append(self, parent: Node, docs: Context, steps: Steps) -> Steps:
        leaf = Node(frozenset(docs), docs, parent=parent)
        parent.children.append(leaf)
        self._inserted.append(leaf)
        return (*steps, len(parent.children) - 1)

    def _graft(self, tree: ContextTree, contexts: Sequence[Context]) -> list[Steps]:
        """Bring the subtrees under a tree's root under ours; the way to each context."""
        root = self._require_root()
        for child in tree.root.children:
            child.parent = root
            root.children.append(child)
        ways = []
        for leaf, context in zip(tree.leaves, contexts, strict=True):
            if leaf is None or leaf is tree.root:
                ways.append(self._append(root, context, ()))
            else:
                ways.append(_steps_to(leaf))
        self._remember(tree)
        return ways

    def _walk(self, steps: Steps) -> Node | None:
        node = self._require_root()
        for step in steps:
            if step >= len(node.children):
                return None
            node = node.children[step]
        return node

    def _require_root(self) -> Node:
        assert self._root is not None
        return self._root


def _matched_first(context: Context, matched: Context) -> Context:
    content, front = frozenset(context), frozenset(matched)
    shared = (doc for doc in matched if doc in content)
    return (*shared, *(doc for doc in context if doc not in front))


def _steps_to(leaf: Node | None) -> Steps:
    steps: list[int] = []
    seen: set[int] = set()
    node = leaf
    while node is not None and id(node) not in seen:
        seen.add(id(node))
        if node.parent is not None and node in node.parent.children:
            steps.append(node.parent.children.index(node))
        node = node.parent
    return tuple(reversed(steps))


def _prune(leaf: Node) -> None:
    """Take a leaf out, and above it what has no children left, up to the root."""
    node = leaf
    while node.parent is not None and not node.children:
        parent = node.parent
        if node in parent.children:
            parent.children.remove(node)
        node.parent = None
        node = parent
