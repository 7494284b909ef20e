"""Single behaviours of the reference tree that the random test does not name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prism_ray.dart import PRIVATE, RETENTION, Anchor, DemandState, NodeKind, Owner, RadixTree
from prism_ray.dart import Piece as P
from prism_ray.dart.leaves import LeafHeap
from prism_ray.model import Atom

DOC = Owner(NodeKind.REUSABLE, b"doc")


def tree(name: str = "dart", page_size: int = 1) -> RadixTree:
    return RadixTree(RETENTION[name](DemandState()), page_size=page_size)


def test_a_prompt_never_matches_its_last_token():
    t = tree()
    t.insert((Atom(b"a", 5),))
    assert t.match((Atom(b"a", 5),)).tokens == 4
    assert t.match((Atom(b"a", 5),), limit=5).tokens == 5


def test_matches_round_down_to_whole_pages_and_pages_are_not_shared_in_part():
    t = tree(page_size=4)
    t.insert((Atom(b"a", 6), Atom(b"b", 6)))
    t.insert((Atom(b"a", 6), Atom(b"c", 6)))
    assert t.total_tokens == 12 + 8
    assert t.match((Atom(b"a", 6), Atom(b"c", 6), Atom(b"d", 1))).tokens == 12
    assert t.match((Atom(b"a", 6), Atom(b"d", 6))).tokens == 4


def test_a_partial_prefill_is_matched_by_token_and_continued():
    t = tree()
    path = (Atom(b"a", 10), Atom(b"b", 10))
    assert t.insert(path, 7).existing_tokens == 0
    assert t.match(path).tokens == 7
    assert t.insert(path, 13).existing_tokens == 7
    assert [node.pieces for node in t] == [(P(b"a", 0, 7),), (P(b"a", 7, 3), P(b"b", 0, 3))]


def test_an_anchor_inside_an_edge_splits_it_and_gives_each_part_one_owner():
    t = tree()
    path = (Atom(b"x", 6), Atom(b"y", 2))
    t.insert(path)
    t.insert(path, anchors=(Anchor(4, DOC), Anchor(8, PRIVATE)))
    assert [(n.tokens, n.segment, n.anchored) for n in t] == [(4, b"doc", True), (4, None, True)]


def test_only_a_whole_span_ends_in_an_anchor():
    t = tree()
    path = (Atom(b"x", 6),)
    t.insert(path, 4, (Anchor(6, DOC),))
    assert [(n.tokens, n.segment, n.anchored) for n in t] == [(4, b"doc", False)]
    t.insert(path, 6, (Anchor(6, DOC),))
    assert [(n.tokens, n.anchored) for n in t] == [(4, False), (2, True)]


def test_a_reusable_owner_is_not_replaced_by_a_private_one():
    t = tree()
    path = (Atom(b"x", 4),)
    t.insert(path, anchors=(Anchor(4, DOC),))
    t.insert(path)
    assert [n.owner for n in t] == [DOC]


def test_private_tokens_that_become_a_segment_change_their_owner():
    t = tree()
    path = (Atom(b"x", 4),)
    t.insert(path)
    t.insert(path, anchors=(Anchor(4, DOC),))
    assert [n.serial for n in t.index.nodes_of(b"doc")] == [n.serial for n in t]


def test_a_lock_on_a_prefix_survives_the_split_of_its_node():
    t = tree()
    path = (Atom(b"a", 8), Atom(b"b", 2))
    held = t.insert(path).node
    t.lock(held)
    t.match((Atom(b"a", 8), Atom(b"c", 1)))
    assert t.locked_tokens == 10
    assert t.evict(100).tokens == 0
    t.unlock(held)
    assert t.evictable_tokens == 10
    assert t.evict(100).tokens == 10
    t.check_integrity()


def test_unlocking_what_is_not_locked_is_an_error():
    t = tree()
    node = t.insert((Atom(b"a", 2),)).node
    with pytest.raises(ValueError, match="not locked"):
        t.unlock(node)


def test_chunks_of_one_prefill_are_no_hits():
    t = tree("lfu")
    path = (Atom(b"a", 4),)
    t.insert(path, 2)
    t.insert(path, counted_tokens=2)
    assert [n.hits for n in t] == [1, 1]


def test_a_match_refreshes_the_whole_path():
    t = tree("lru")
    t.insert((Atom(b"a", 4), Atom(b"x", 1)))
    t.insert((Atom(b"b", 4), Atom(b"y", 1)))
    t.match((Atom(b"a", 4), Atom(b"x", 1), Atom(b"z", 1)))
    assert [n.pieces[0].id for n in t.eviction_order()] == [b"b", b"a"]


def test_a_key_that_returns_to_an_earlier_value_never_compares_nodes():
    class ByHits:
        uses_anchors = False

        def key(self, node):
            return (node.hits,)

    t = tree()
    node = t.insert((Atom(b"a", 2),)).node
    heap = LeafHeap(ByHits())
    for hits in (1, 2, 1, 2, 1):
        node.hits = hits
        heap.update(node)
    assert heap.pop() is node
    assert heap.pop() is None


SCRIPT = """
import random
from prism_ray.dart import *
from prism_ray.model import Atom, Demand, DemandTable
rng = random.Random(5)
cache = PrefixCache("dart", pool_tokens=400)
names = [b"s%d" % i for i in range(30)]
for step in range(400):
    docs = rng.sample(names, 3)
    path = (Atom(b"sys", 9), *(Atom(d, 8) for d in docs), Atom(b"q%d" % step, 3))
    cut = (9, 17, 25, 33, 36)
    kinds = [Owner(NodeKind.SYSTEM, b"sys"), *(Owner(NodeKind.REUSABLE, d) for d in docs), PRIVATE]
    cache.insert(path, anchors=tuple(map(Anchor, cut, kinds)))
    cache.hint(DemandTable(step, tuple(Demand(d, rng.randrange(3)) for d in rng.sample(names, 9))))
    if cache.tree.total_tokens > 400:
        print([n.serial for n in cache.evict(cache.tree.total_tokens - 400).nodes])
"""


def test_evictions_do_not_depend_on_the_hash_seed():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) > 100


def test_the_lower_part_of_a_split_is_recent_in_the_engines_own_tree_only():
    a, b, c, x = (Atom(name, 3) for name in (b"a", b"b", b"c", b"x"))
    for name, order in (("lru", [b"c", b"b", b"a"]), ("dart", [b"b", b"c", b"a"])):
        t = tree(name)
        t.insert((a, b))
        t.insert((c,))
        t.match((a, x), 6)
        assert [n.pieces[0].id for n in t.eviction_order()] == order
