"""ContextPilot's tree of contexts: hierarchical clustering, and the order it gives to each context.

A context is a tuple of distinct document numbers. Static: one batch becomes one tree. What is done
with a tree from batch to batch is ``context_index``'s business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prism_ray.baselines.linkage import average_linkage

Context = tuple[int, ...]
POSITION_WEIGHT = 0.001
"""Weight of the mean difference of positions in the distance of two contexts."""


@dataclass(slots=True, eq=False)
class Node:
    """A set of documents that the contexts below share, in the order in which they write it.

    A leaf stands for contexts of one set; ``members`` are their places in the batch.
    """

    content: frozenset[int]
    docs: Context
    members: set[int] = field(default_factory=set)
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None

    def adopt(self, child: Node) -> None:
        """Make ``child`` a child, once."""
        if child is not self and child not in self.children:
            self.children.append(child)


@dataclass(frozen=True, slots=True)
class ContextTree:
    """A batch's tree: its root, each context's leaf (None if its set became an inner node's)."""

    root: Node
    leaves: tuple[Node | None, ...]

    def reordered(self, contexts: Sequence[Context]) -> list[Context]:
        """Each context in its leaf's order; one without a leaf stays as it is."""
        return [
            leaf.docs if leaf is not None and leaf.docs else context
            for leaf, context in zip(self.leaves, contexts, strict=True)
        ]


def distance(a: Context, b: Context) -> float:
    """1 - |A∩B| / max(|A|, |B|) + 0.001 × mean difference of positions; 1 if nothing is shared."""
    positions = {doc: at for at, doc in enumerate(b)}
    shifts = [abs(at - positions[doc]) for at, doc in enumerate(a) if doc in positions]
    if not shifts:
        return 1.0
    overlap = 1.0 - len(shifts) / max(len(a), len(b))
    return overlap + POSITION_WEIGHT * (sum(shifts) / len(shifts))


def distances(contexts: Sequence[Context]) -> npt.NDArray[np.float64]:
    """All pairs' distances, [n, n], rounded to 32 bits as ContextPilot keeps them."""
    width = max((len(c) for c in contexts), default=0)
    lengths = np.array([len(c) for c in contexts])
    # Documents are numbered from 0, so the filler matches none.
    cells = np.array([(*c, *[-1] * (width - len(c))) for c in contexts]).reshape(-1, width)
    places = np.arange(width)
    shifts = np.abs(places[:, None] - places[None, :])
    found = np.ones((len(contexts), len(contexts)), dtype=np.float32)
    for row, context in enumerate(contexts):
        if not context:
            continue
        equal = np.array(context)[None, :, None] == cells[:, None, :]
        shared = equal.sum(axis=(1, 2))
        moved = (equal * shifts[None, : len(context), :]).sum(axis=(1, 2))
        overlap = 1.0 - shared / np.maximum(lengths, len(context))
        mean = moved / np.maximum(shared, 1)
        found[row] = np.where(shared > 0, overlap + POSITION_WEIGHT * mean, 1.0)
    return found.astype(np.float64)


def build(contexts: Sequence[Context]) -> ContextTree:
    """The tree of a batch of at least one context."""
    if len(contexts) == 1:
        leaf = Node(frozenset(contexts[0]), contexts[0], {0})
        return ContextTree(_root_over([leaf]), (leaf,))
    nodes = _without_empty(_clustered(contexts))
    tops = [node for node in nodes if node.parent is None]
    root = tops[0] if len(tops) == 1 else _root_over(tops)
    leaves = _leaves(nodes, len(contexts))
    _order(root, nodes, contexts)
    return ContextTree(root, leaves)


def _root_over(nodes: list[Node]) -> Node:
    root = Node(frozenset(), (), children=list(nodes))
    for node in nodes:
        node.parent = root
    return root


def _clustered(contexts: Sequence[Context]) -> list[Node]:
    """Nodes in order of their making; each cluster's node holds what its two parts share."""
    nodes: list[Node] = []
    by_content: dict[frozenset[int], Node] = {}
    clusters: list[Node] = []
    for place, context in enumerate(contexts):
        content = frozenset(context)
        leaf = by_content.get(content)
        if leaf is None:
            leaf = by_content[content] = Node(content, tuple(sorted(content)))
            nodes.append(leaf)
        leaf.members.add(place)
        clusters.append(leaf)
    for first, second in average_linkage(distances(contexts)):
        parts = clusters[first], clusters[second]
        clusters.append(parts[0] if parts[0] is parts[1] else _merge(parts, by_content, nodes))
    return nodes


def _merge(
    parts: tuple[Node, Node], by_content: dict[frozenset[int], Node], nodes: list[Node]
) -> Node:
    content = parts[0].content & parts[1].content
    members = parts[0].members | parts[1].members
    node = by_content.get(content) if content else None
    if node is None or node in parts:
        node = Node(content, tuple(sorted(content)), members, list(parts))
        nodes.append(node)
        if content:
            by_content[content] = node
    else:
        node.members |= members
        for part in parts:
            node.adopt(part)
    for part in parts:
        part.parent = node
    return node


def _without_empty(nodes: list[Node]) -> list[Node]:
    """Nodes that share nothing go, newest first; their children go to their parents."""
    gone: set[int] = set()
    for node in reversed([node for node in nodes if not node.content]):
        gone.add(id(node))
        parent = node.parent
        if parent is not None and id(parent) not in gone:
            if node in parent.children:
                parent.children.remove(node)
            for child in node.children:
                parent.adopt(child)
        for child in node.children:
            child.parent = parent
    kept = [node for node in nodes if id(node) not in gone]
    for node in kept:
        if node.parent is not None and id(node.parent) in gone:
            node.parent = None
    return kept


def _leaves(nodes: list[Node], count: int) -> tuple[Node | None, ...]:
    found: list[Node | None] = [None] * count
    for node in reversed(nodes):
        if not node.children:
            for place in node.members:
                found[place] = node
    return tuple(found)


def _order(root: Node, nodes: list[Node], contexts: Sequence[Context]) -> None:
    """From the root down each node writes its parent's documents first, a leaf its own order then."""
    for node in nodes:
        if not node.children:
            node.docs = contexts[min(node.members)]
    seen: set[int] = set()
    line = deque([root])
    while line:
        node = line.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        parent = node.parent
        if parent is not None and parent.docs and node.docs:
            node.docs = (*parent.docs, *(doc for doc in node.docs if doc not in parent.content))
        line.extend(node.children)
