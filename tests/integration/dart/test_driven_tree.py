"""DART inside SGLang's own cache, driven as the scheduler drives it: no engine, CPU tensors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.bench.tree_arms import CacheDriver, CacheRequest, build_cache
from prism_ray.dart import RETENTION, NodeKind
from prism_ray.dart.hints import dump_demand
from prism_ray.dart.retention import CONTINUED
from prism_ray.model import Demand, DemandTable

from .twins import DOCS, Prompt, StockTwins, Twins, tokens_of


@pytest.mark.parametrize("page", [1, 4])
def test_a_request_leaves_the_pool_whole_and_its_spans_owned(page):
    cache = build_cache("dart", 400, page_size=page, context=128)
    driver = CacheDriver(cache)
    prompt = Prompt([0, 3], b"one", answer=6)
    request = prompt.request()
    assert driver.serve(request, tokens_of(prompt.whole[-1:])) == 0
    driver.check_pool()
    cache.check_integrity()
    kinds = [node.kind for node in cache.tree_core.nodes()]
    assert kinds[-1] == NodeKind.GENERATED
    assert kinds.count(NodeKind.REUSABLE) == 2
    assert driver.serve(Prompt([0, 3], b"two").request()) == (18 if page == 1 else 16)


@pytest.mark.parametrize("arm", ["dart", "python-lru"])
@pytest.mark.parametrize("page", [1, 4])
def test_requests_that_compute_the_same_at_once_give_the_doubles_back(arm, page):
    driver = CacheDriver(build_cache(arm, 400, page_size=page, context=128))
    prompts = [Prompt([0, 3], b"same", answer=5), Prompt([0, 3, 2], b"longer", answer=5)]
    requests = [prompt.request() for prompt in (*prompts, prompts[0])]
    for request in requests:
        assert driver.admit(request)
        assert request.prefix_len == 0
    for chunk in (4, 16, None):  # a prefill in chunks, interleaved
        for request in requests:
            driver.prefill(request, chunk)
    for request in requests:
        assert driver.generate(request, [7, 7, 7])
    driver.drop(requests.pop())
    for request in requests:
        driver.finish(request)
    driver.check_pool()
    driver.cache.sanity_check()
    if arm == "dart":
        driver.cache.check_integrity()


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("serve"),
            st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
            st.integers(0, 5),
            st.booleans(),
            st.sampled_from(["", "one", "two"]),
        ),
        st.tuples(
            st.just("hold"), st.lists(st.integers(0, 5), min_size=1, max_size=2, unique=True)
        ),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(
            st.just("wait"), st.lists(st.integers(0, 5), min_size=1, max_size=2, unique=True)
        ),
        st.tuples(st.sampled_from(["give up", "let in"]), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(1, 30)),
        st.tuples(st.just("hint"), st.lists(st.integers(0, 5), max_size=3, unique=True)),
        st.tuples(
            st.just("plan"), st.lists(st.integers(0, 5), max_size=3, unique=True), st.booleans()
        ),
    ),
    min_size=5,
    max_size=30,
)


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("retention", list(RETENTION))
@given(operations=operations)
@settings(max_examples=25, deadline=None)
def test_sglangs_tree_and_the_reference_tree_evict_the_same_in_the_same_order(
    retention, page, operations
):
    twins = Twins(retention, page)
    run(twins, operations)
    twins.sglang.check_integrity()


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("core", ["python-lru", "rust-lru"])
@given(operations=operations)
@settings(max_examples=25, deadline=None)
def test_sglangs_own_lru_and_the_reference_tree_evict_the_same_leaves_in_the_same_order(
    core, page, operations
):
    run(StockTwins(core, page), operations)


def run(twins: Twins, operations: list[Any]) -> None:
    for turn, (name, *args) in enumerate(operations):
        if name == "serve":
            twins.serve(Prompt(args[0], b"%d" % turn, args[1], marked=args[2], extra=args[3]))
        elif name == "hold" and len(twins.held) < 8:
            twins.hold(Prompt(args[0], b"%d" % turn))
        elif name == "release" and twins.held:
            twins.release(args[0])
        elif name == "wait":
            twins.wait(Prompt(args[0], b"%d" % turn))
        elif name == "give up" and twins.waiting:
            twins.give_up(args[0])
        elif name == "let in" and twins.waiting:
            twins.let_in(args[0])
        elif name == "evict":
            twins.evict(args[0])
        elif name == "hint":
            rows = tuple(Demand(DOCS[n].id, 1e6 * (n + 1), i) for i, n in enumerate(args[0]))
            twins.serve(Prompt([5], b"%d" % turn), demand=dump_demand(DemandTable(turn, rows)))
        elif name == "plan":
            marks = Prompt(args[0], b"%d" % turn).marks if args[0] else ()
            places = [mark.path_key for mark in marks if mark.path_key is not None]
            rows = tuple(Demand(key, 1.0, i) for i, key in enumerate(places))
            if args[1]:
                rows = (*rows, Demand(CONTINUED, 1.0))
            twins.serve(Prompt([5], b"%d" % turn), demand=dump_demand(DemandTable(turn, rows)))
        twins.check()
    while twins.held:
        twins.release(0)
    twins.evict(10_000)
    twins.driver.check_pool()


@pytest.mark.parametrize("field", ["extra_key", "salt"])
@pytest.mark.parametrize("page", [1, 4])
def test_prompts_of_another_extra_key_or_salt_share_nothing_though_their_anchors_are_equal(
    field, page
):
    cache = build_cache("dart", 400, page_size=page, context=128)
    driver = CacheDriver(cache)

    def serve(name: bytes, value: str) -> int:
        prompt = Prompt([0, 3], name)
        request = CacheRequest(name.hex(), tokens_of(prompt.path), prompt.marks, **{field: value})
        return driver.serve(request)

    shared = 18 if page == 1 else 16
    assert [serve(b"1", "one"), serve(b"2", "two")] == [0, 0]
    assert [serve(b"3", "one"), serve(b"4", "two")] == [shared, shared]
    cache.check_integrity()
    driver.check_pool()


@pytest.mark.parametrize("ending", ["none", "give up", "let in"])
def test_of_equally_wanted_places_both_trees_protect_the_one_that_a_waiting_request_needs(ending):
    twins = Twins("dart", 1)
    copies = ([1, 0], [2, 0], [3, 0], [4, 0])  # of document 0; the shallow ones come first
    for docs in copies:
        twins.serve(Prompt(docs, bytes(docs)))
    twins.wait(Prompt([4, 0], b"waits"))
    if ending == "give up":
        twins.give_up(0)
    elif ending == "let in":
        twins.let_in(0)
    table = DemandTable(1, (Demand(DOCS[0].id, 1e6),))
    twins.serve(Prompt([5], b"news"), demand=dump_demand(table))
    twins.evict(1)
    twins.check()
    waited_for = Prompt([4, 0], b"again").marks[-2].path_key
    kept = {n.path_key for n in twins.ours.tree if n.protected and n.kind == NodeKind.REUSABLE}
    assert len(kept) == 2
    assert (waited_for in kept) == (ending == "none")


def test_a_thousand_malformed_hints_are_counted_and_leave_the_cache_serving():
    cache = build_cache("dart", 4000, context=128)
    driver = CacheDriver(cache)
    payloads = [{}, {"v": 3}, {"anchors": 5}, {"anchors": [[1]]}, {"rows": 1}, {"version": "x"}]
    for turn in range(500):
        bad = payloads[turn % len(payloads)]
        actions = [
            {"action_id": "a", "action_type": kind, "action_version": "1", "payload": bad}
            for kind in ("dart.anchors", "dart.demand", "somebody.else")
        ]
        hints = {"protocol_version": "1", "message_id": "m", "actions": actions}
        prompt = Prompt([turn % 6], b"%d" % turn)
        request = CacheRequest(str(turn), tokens_of(prompt.path), hints=hints)
        # A prompt whose hints are bad is cached like any other.
        assert driver.serve(request) == (0 if turn == 0 else 7 if turn < 6 else 10 + turn % 6)
    assert cache.retention_stats().hints_ignored_total == 1000
    assert driver.serve(Prompt([2], b"after").request()) > 0
    cache.check_integrity()
    driver.check_pool()


def test_hints_act_before_the_allocation_of_the_request_that_brings_them():
    cache = build_cache("dart", 48, context=128)
    driver = CacheDriver(cache)
    assert driver.serve(Prompt([0], b"a").request()) == 0
    assert driver.serve(Prompt([1], b"b").request()) == 7
    # The third needs room; by recency [0] would go, but this very request says it is wanted.
    table = dump_demand(DemandTable(1, (Demand(DOCS[0].id, 1e6),)))
    filler = Prompt([5, 4, 3, 2], b"c").request(demand=table)
    assert driver.serve(filler) == 7
    resident = {node.segment for node in cache.tree_core.nodes()}
    assert DOCS[0].id in resident
    assert DOCS[1].id not in resident


def test_a_flush_empties_index_heap_and_places_and_the_cache_goes_on():
    cache = build_cache("dart", 400, context=128)
    driver = CacheDriver(cache)
    driver.serve(Prompt([0, 1], b"a").request())
    assert list(cache.walk())
    cache.reset()
    driver.cache.token_to_kv_pool_allocator.clear()
    assert list(cache.walk()) == []
    assert driver.serve(Prompt([0, 1], b"b").request()) == 0
    cache.check_integrity()


@given(operations=operations)
@settings(max_examples=25, deadline=None)
def test_before_anything_is_evicted_matches_are_those_of_sglangs_own_core(operations):
    ours, theirs = (
        CacheDriver(build_cache(arm, 8000, context=128)) for arm in ("dart", "python-lru")
    )
    for turn, (name, *args) in enumerate(operations):
        if name not in ("serve", "hold"):
            continue
        prompt = Prompt(args[0], b"%d" % turn, answer=args[1] if name == "serve" else 0)
        answer = tokens_of(prompt.whole[-1:])
        cached = [driver.serve(prompt.request(), answer) for driver in (ours, theirs)]
        assert cached[0] == cached[1]
        assert ours.cache.evictable_size() == theirs.cache.evictable_size()
        assert ours.cache.total_size() == theirs.cache.total_size()
    ours.check_pool()
    theirs.check_pool()
