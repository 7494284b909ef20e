"""Eviction keys: what goes first under each strategy (paper, eq. 13; choices A8 to A13)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.dart import (
    PRIVATE,
    RETENTION,
    Anchor,
    DemandState,
    Node,
    NodeFacts,
    NodeKind,
    NodeView,
    Owner,
    PrefixCache,
    path_keys,
    skeleton_anchors,
)
from prism_ray.model import Atom, Demand, DemandTable, Segment, SegmentKind, Skeleton
from prism_ray.registry import UnknownName

SYSTEM = Segment(b"sys", 10, SegmentKind.SYSTEM)


def add(cache: PrefixCache, *documents: str, private: str = "q", system: Segment | None = SYSTEM):
    """Insert a prompt: the system prefix, 4 tokens a document, 2 private tokens."""
    segments = tuple(Segment(name.encode(), 4) for name in documents)
    skeleton = Skeleton(system, segments, (Atom(b"", 0),) * len(segments), 2)
    path = (*skeleton.path(skeleton.native_order), Atom(private.encode(), 2))
    return cache.insert(path, anchors=skeleton_anchors(skeleton, skeleton.native_order)).node


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [n.segment.decode() if n.segment else n.pieces[0].id.decode() for n in nodes]


def table(version: int, **rows: float) -> DemandTable:
    return DemandTable(version, tuple(Demand(s.encode(), p) for s, p in rows.items()))


def test_private_goes_before_documents_by_demand_before_protected_before_system_leafs():
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=1)
    add(cache, "a", private="qa")
    add(cache, "b", private="qb")
    add(cache, "c", private="qc")
    cache.hint(table(1, a=2e6, b=1e6, c=1.0))
    assert names(cache.eviction_order()) == ["qa", "qb", "qc", "c", "b", "a", "sys"]


def test_generated_tokens_are_as_cheap_as_private_ones():
    cache = PrefixCache("dart", pool_tokens=1000)
    document = Anchor(4, Owner(NodeKind.REUSABLE, b"d"))
    cache.insert((Atom(b"d", 4),), anchors=(document,))
    cache.insert(
        (Atom(b"x", 3), Atom(b"out", 5)),
        anchors=(Anchor(3, PRIVATE), Anchor(8, Owner(NodeKind.GENERATED))),
    )
    assert names(cache.eviction_order()) == ["out", "x", "d"]


def test_an_unused_system_prefix_stays_longer_than_a_wanted_unprotected_document():
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=0)
    add(cache, system=Segment(b"old", 10, SegmentKind.SYSTEM), private="q1")
    add(cache, "a", private="q2")
    cache.hint(table(1, a=1e6))
    assert names(cache.eviction_order()) == ["q1", "q2", "a", "old", "sys"]


def test_without_demand_dart_is_recency_with_private_suffixes_first():
    cache = PrefixCache("dart", pool_tokens=1000)
    add(cache, "a", private="qa", system=None)
    add(cache, "b", private="qb", system=None)
    cache.match((Atom(b"a", 4), Atom(b"other", 1)))
    assert names(cache.eviction_order()) == ["qa", "qb", "b", "a"]


def test_forgotten_demand_falls_back_to_recency():
    cache = PrefixCache("dart", pool_tokens=1000)
    add(cache, "a", private="qa", system=None)
    add(cache, "b", private="qb", system=None)
    cache.hint(table(1, a=5.0))
    assert names(cache.eviction_order())[-1] == "a"
    for _ in range(2048):
        cache.observe_request()
    assert names(cache.eviction_order()) == ["qa", "qb", "a", "b"]
    cache.check_integrity()


def test_a_new_table_reorders_leaves_that_were_already_evictable():
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=0)
    for name in "abc":
        add(cache, name, private="q" + name, system=None)
    cache.evict(6)
    cache.hint(table(1, a=3.0, b=2.0, c=1.0))
    cache.check_integrity()
    assert names(cache.evict(4).nodes) == ["c"]
    cache.hint(table(2, a=1.0, b=2.0))
    cache.check_integrity()
    assert names(cache.evict(4).nodes) == ["a"]


def test_stale_tables_change_nothing():
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=0)
    for name in "ab":
        add(cache, name, private="q" + name, system=None)
    assert cache.hint(table(7, a=1.0))
    assert not cache.hint(table(7, b=9.0))
    assert not cache.hint(table(6, b=9.0))
    assert names(cache.eviction_order())[-2:] == ["b", "a"]


@pytest.mark.parametrize(("anchor_rank", "kept"), [("paths", b"c"), ("demand", b"b")])
def test_anchors_of_equal_demand_rank_shallow_first_or_by_age_alone(anchor_rank, kept):
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=1, anchor_rank=anchor_rank)
    add(cache, "a", "b", private="q1", system=None)
    add(cache, "c", private="q2", system=None)
    cache.hint(table(1, b=1.0, c=1.0))
    cache.refresh_protection()
    assert [n.segment for n in cache.tree if n.protected] == [kept]


def test_a_protected_leaf_keeps_its_ancestors():
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=1)
    add(cache, "a", "b", private="q1", system=None)
    add(cache, "c", private="q2", system=None)
    cache.hint(table(1, b=2.0, c=1.0))
    assert names(cache.eviction_order()) == ["q1", "q2", "c", "b", "a"]


def test_among_equal_demand_protection_goes_to_the_anchor_that_waiting_requests_use():
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=1)
    add(cache, "a", private="qa", system=None)
    add(cache, "b", private="qb", system=None)
    (place_a,), (place_b,) = (path_keys((Atom(name, 4),)) for name in (b"a", b"b"))
    cache.waits("next", (place_b, None))
    cache.hint(table(1, a=1.0, b=1.0))
    cache.match((Atom(b"a", 4), Atom(b"x", 1)))
    assert names(cache.evict(5).nodes) == ["qa", "qb", "a"]
    assert [n.segment for n in cache.tree if n.protected] == [b"b"]
    add(cache, "a", private="qa", system=None)
    cache.waits("second", (place_a,))
    cache.waits("third", (place_a,))
    cache.waits("third", (place_a,))
    cache.hint(table(2, a=1.0, b=1.0, c=1.0))
    cache.refresh_protection()
    assert [n.segment for n in cache.tree if n.protected] == [b"a"]
    for gone in ("second", "third", "unknown"):
        cache.waits_no_more(gone)
    cache.hint(table(3, a=1.0, b=1.0))
    cache.refresh_protection()
    assert [n.segment for n in cache.tree if n.protected] == [b"b"]


def test_among_equal_demand_and_queue_the_shallow_copy_is_protected():
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=1)
    add(cache, "x", "a", private="q1", system=None)
    add(cache, "a", private="q2", system=None)
    cache.hint(table(1, a=1.0))
    cache.refresh_protection()
    assert [(n.segment, n.start) for n in cache.tree if n.protected] == [(b"a", 0)]


def test_protected_tokens_stay_within_their_share_of_the_pool():
    cache = PrefixCache("dart", pool_tokens=20, protect_anchors=20)
    for name in "abcd":
        add(cache, name, private="q" + name, system=None)
    cache.hint(table(1, a=4.0, b=3.0, c=2.0, d=1.0))
    cache.refresh_protection()
    assert [n.segment for n in cache.tree if n.protected] == [b"a", b"b"]
    assert cache.protection.protected_tokens() == 8


def test_system_prefixes_beyond_the_cap_lose_protection_least_recently_used_first():
    cache = PrefixCache("dart", pool_tokens=40)
    for index in range(4):
        add(cache, system=Segment(b"s%d" % index, 8, SegmentKind.SYSTEM), private=f"q{index}")
    cache.match((Atom(b"s0", 8), Atom(b"x", 1)))
    cache.refresh_protection()
    assert {n.segment for n in cache.tree if n.protected} == {b"s0", b"s3"}
    cache.check_integrity()
    add(cache, system=Segment(b"s4", 8, SegmentKind.SYSTEM), private="q4")
    cache.refresh_protection()
    assert {n.segment for n in cache.tree if n.protected} == {b"s0", b"s4"}
    cache.check_integrity()


def test_a_span_that_is_only_partly_resident_is_not_protected():
    cache = PrefixCache("dart", pool_tokens=1000)
    anchors = (Anchor(4, Owner(NodeKind.REUSABLE, b"a")),)
    cache.insert((Atom(b"a", 4),), 3, anchors)
    cache.hint(table(1, a=1.0))
    cache.refresh_protection()
    assert not any(n.protected for n in cache.tree)


def test_protection_survives_a_split_and_ends_with_the_next_table():
    cache = PrefixCache("dart", pool_tokens=1000)
    add(cache, "a", private="qa", system=None)
    cache.hint(table(1, a=1.0))
    cache.refresh_protection()
    cache.match((Atom(b"a", 4),), limit=2)
    assert [n.tokens for n in cache.tree if n.protected] == [2, 2]
    cache.hint(table(2, b=1.0))
    cache.refresh_protection()
    assert not any(n.protected for n in cache.tree)
    cache.check_integrity()


@pytest.mark.parametrize(
    ("name", "colder", "warmer"),
    [
        ("lru", {"last_access": 1, "hits": 9}, {"last_access": 2, "hits": 1}),
        ("lfu", {"last_access": 2, "hits": 1}, {"last_access": 1, "hits": 2}),
        ("slru", {"last_access": 9, "hits": 1}, {"last_access": 1, "hits": 2}),
        ("slru", {"last_access": 1, "hits": 8}, {"last_access": 2, "hits": 2}),
        ("lru+active", {"segment": b"queued", "last_access": 9}, {"segment": b"active"}),
        ("next-use", {"kind": NodeKind.PRIVATE, "last_access": 9}, {"segment": b"none"}),
        ("next-use", {"segment": b"none", "hits": 99}, {"segment": b"active"}),
        ("next-use", {"segment": b"active"}, {"segment": b"queued"}),
    ],
)
def test_each_strategy_gives_up_the_colder_node_first(name, colder, warmer):
    demand = DemandState()
    demand.apply(DemandTable(1, (Demand(b"active", 2e6 + 3, 5), Demand(b"queued", 9e5, 2))))
    strategy = RETENTION[name](demand)
    plain = NodeFacts(NodeKind.REUSABLE, None, 1, 1, False)
    assert isinstance(plain, NodeView)
    assert strategy.key(plain._replace(**colder)) < strategy.key(plain._replace(**warmer))


def test_plain_lru_keeps_the_engines_own_node_sizes():
    cache = PrefixCache("lru", pool_tokens=1000)
    add(cache, "a", "b", private="q")
    assert [node.tokens for node in cache.tree] == [20]


def test_an_unknown_strategy_is_refused_with_the_names_that_exist():
    with pytest.raises(UnknownName, match="lru, lru\\+active"):
        PrefixCache("mru", pool_tokens=1)


classes = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True),
        st.sampled_from([0, 0, 7, 20]),
        st.lists(st.sampled_from("abcd"), max_size=2, unique=True),
    ),
    max_size=12,
)


@given(classes)
@settings(max_examples=60, deadline=None)
def test_no_leaf_of_a_higher_class_goes_while_one_of_a_lower_class_could(steps):
    cache = PrefixCache("dart", pool_tokens=60, protect_anchors=2)
    for turn, (documents, evict, wanted) in enumerate(steps):
        add(cache, *documents, private=f"q{turn}")
        cache.hint(DemandTable(turn, tuple(Demand(d.encode(), 5.0) for d in wanted)))
        cache.refresh_protection()
        left = {node.serial: node for node in cache.tree}
        above = {node.serial: node.parent.serial for node in left.values() if node.parent}
        classes = {node.serial: eviction_class(node) for node in left.values()}
        for gone in cache.evict(evict).nodes:
            leaves = left.keys() - {above[serial] for serial in left}
            assert classes[gone.serial] == min(classes[serial] for serial in leaves)
            del left[gone.serial]
        cache.check_integrity()


def eviction_class(node):
    """Paper, eq. (13): 0 private or generated, 1 reusable, 2 protected."""
    return 0 if node.kind <= NodeKind.GENERATED else 1 + node.protected
