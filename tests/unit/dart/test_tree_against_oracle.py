"""The reference tree against a set of token prefixes, under random operations."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.dart import PRIVATE, RETENTION, Anchor, DemandState, Node, NodeKind, Owner, RadixTree
from prism_ray.dart.control import RetentionControl
from prism_ray.dart.retention import CONTINUED
from prism_ray.model import Atom, Demand, DemandTable

ATOMS = [Atom(b"sys", 5), Atom(b"a", 3), Atom(b"b", 4), Atom(b"c", 1), Atom(b"d", 7), Atom(b"e", 0)]
Token = tuple[bytes, int]

paths = st.lists(st.sampled_from(ATOMS), max_size=5).map(tuple)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), paths, st.integers(0, 25), st.booleans()),
        st.tuples(st.just("match"), paths, st.none() | st.integers(0, 25)),
        st.tuples(st.just("hold"), paths),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(0, 12)),
        st.tuples(st.just("hint"), st.lists(st.sampled_from(ATOMS), max_size=3), st.booleans()),
    ),
    max_size=40,
)


def tokens_of(path: tuple[Atom, ...]) -> list[Token]:
    return [(atom.id, i) for atom in path for i in range(atom.tokens)]


def anchors_of(path: tuple[Atom, ...]) -> list[Anchor]:
    anchors, offset = [], 0
    for atom in path:
        offset += atom.tokens
        kind = NodeKind.SYSTEM if atom.id == b"sys" else NodeKind.REUSABLE
        anchors.append(Anchor(offset, PRIVATE if atom.id == b"c" else Owner(kind, atom.id)))
    return anchors


@dataclass
class Oracle:
    """Every cached prefix of at least one token (whole pages only), and held ones."""

    page: int
    cached: set[tuple[Token, ...]] = field(default_factory=set)
    held: list[tuple[Token, ...]] = field(default_factory=list)

    def floor(self, tokens: int) -> int:
        return tokens - tokens % self.page

    def match(self, tokens: list[Token], limit: int) -> int:
        best = 0
        for end in range(self.page, self.floor(min(limit, len(tokens))) + 1, self.page):
            if tuple(tokens[:end]) not in self.cached:
                break
            best = end
        return best

    def insert(self, tokens: list[Token], end: int) -> int:
        end = self.floor(min(end, len(tokens)))
        new = {tuple(tokens[:stop]) for stop in range(self.page, end + 1, self.page)}
        existing = len(new & self.cached)
        self.cached |= new
        return existing * self.page

    def locked(self) -> set[tuple[Token, ...]]:
        return {p[:n] for p in self.held for n in range(self.page, len(p) + 1, self.page)}


def tree_prefixes(tree: RadixTree, page: int) -> set[tuple[Token, ...]]:
    prefixes = set()
    for node in tree:
        whole = node_tokens(node)
        prefixes |= {whole[:n] for n in range(node.start + page, node.end + 1, page)}
    return prefixes


def node_tokens(node: Node) -> tuple[Token, ...]:
    return tuple((p.id, p.start + i) for p in node.path() for i in range(p.length))


def slow_eviction_order(tree: RadixTree, strategy) -> list[Node]:
    """Smallest key among all leaves, again and again."""
    alive = [node for node in tree if node.locks == 0]
    order = []
    while alive:
        leaves = [n for n in alive if not any(other.parent is n for other in alive)]
        first = min(leaves, key=lambda n: (strategy.key(n), n.serial))
        alive.remove(first)
        order.append(first)
    return order


@pytest.mark.parametrize("page", [1, 3])
@pytest.mark.parametrize("retention", list(RETENTION))
@given(operations=operations)
@settings(max_examples=40, deadline=None)
def test_the_tree_caches_what_a_set_of_prefixes_caches(retention, page, operations):
    demand = DemandState()
    strategy = RETENTION[retention](demand)
    tree = RadixTree(strategy, page_size=page)
    control = RetentionControl(tree, demand, pool_tokens=1000)
    oracle = Oracle(page)
    holds: list[Node] = []
    for version, (name, *args) in enumerate(operations):
        if name == "insert":
            path, end, anchored = args
            tokens = tokens_of(path)
            end = min(end, len(tokens))
            inserted = tree.insert(path, end, anchors_of(path) if anchored else ())
            assert inserted.existing_tokens == oracle.insert(tokens, end)
            assert node_tokens(inserted.node) == tuple(tokens[: oracle.floor(end)])
        elif name == "match":
            path, limit = args
            tokens = tokens_of(path)
            expected = oracle.match(tokens, max(0, len(tokens) - 1) if limit is None else limit)
            assert tree.peek(path, limit) == expected
            found = tree.match(path, limit)
            assert found.tokens == expected
            assert node_tokens(found.node) == tuple(tokens[:expected])
        elif name == "hold":
            found = tree.match(args[0])
            tree.lock(found.node)
            holds.append(found.node)
            oracle.held.append(node_tokens(found.node))
        elif name == "release" and holds:
            index = args[0] % len(holds)
            tree.unlock(holds.pop(index))
            oracle.held.pop(index)
        elif name == "evict":
            order = slow_eviction_order(tree, strategy)
            assert list(tree.eviction_order()) == order
            free = tree.evictable_tokens
            evicted = tree.evict(args[0])
            assert list(evicted.nodes) == order[: len(evicted.nodes)]
            assert evicted.tokens == sum(node.tokens for node in evicted.nodes)
            assert evicted.tokens >= min(args[0], free)
            assert evicted.tokens - sum(n.tokens for n in evicted.nodes[-1:]) < max(args[0], 1)
            oracle.cached = tree_prefixes(tree, page)
        elif name == "hint":
            rows = {a.id: Demand(a.id, float(i + 1), i) for i, a in enumerate(args[0])}
            if args[1]:
                rows[CONTINUED] = Demand(CONTINUED, 1.0)
            control.hint(DemandTable(version, tuple(rows.values())))
        tree.check_integrity()
        assert tree_prefixes(tree, page) == oracle.cached
        assert tree.total_tokens == page * len(oracle.cached)
        assert tree.locked_tokens == page * len(oracle.locked())
        assert oracle.locked() <= oracle.cached
