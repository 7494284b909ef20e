"""DART inside SGLang's own cache, driven as the scheduler drives it: no engine, CPU tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.bench.tree_arms import CacheDriver, CacheRequest, build_cache
from prism_ray.dart import RETENTION, Anchor, AnchorMark, NodeKind, PrefixCache, skeleton_marks
from prism_ray.dart.hints import dump_demand
from prism_ray.dart.node import GENERATED, PRIVATE
from prism_ray.model import Atom, Demand, DemandTable, Segment, Skeleton

SYSTEM = Segment(b"sys", 5)
DOCS = [Segment(bytes([n]), 3 + n, run=0) for n in range(6)]
GAP = Atom(b"gap", 2)
NAMES = {b"sys": 1, b"gap": 2} | {d.id: 10 + n for n, d in enumerate(DOCS)}


def tokens_of(path: tuple[Atom, ...]) -> list[int]:
    """Token ids that are equal exactly where the atoms are."""
    ids = []
    for atom in path:
        name = NAMES.setdefault(atom.id, 100 + len(NAMES))
        ids += [name * 1000 + i for i in range(atom.tokens)]
    return ids


def skeleton(docs: list[int], private: int) -> Skeleton:
    segments = tuple(DOCS[n] for n in docs)
    return Skeleton(SYSTEM, segments, (GAP,) * len(segments), private)


@dataclass
class Prompt:
    """One prompt for both trees: atoms for ours, tokens and marks for SGLang's."""

    docs: list[int]
    name: bytes
    answer: int = 0
    marked: bool = True
    path: tuple[Atom, ...] = field(init=False)
    marks: tuple[AnchorMark, ...] = field(init=False)

    def __post_init__(self) -> None:
        shape = skeleton(self.docs, 3)
        self.path = (*shape.path(shape.native_order), Atom(b"q" + self.name, 3))
        self.marks = skeleton_marks(shape, shape.native_order) if self.marked else ()

    @property
    def whole(self) -> tuple[Atom, ...]:
        return (*self.path, Atom(b"a" + self.name, self.answer))

    def request(self, **hints: Any) -> CacheRequest:
        return CacheRequest(self.name.hex(), tokens_of(self.path), self.marks, **hints)

    def anchors(self) -> list[Anchor]:
        prompt = sum(a.tokens for a in self.path)
        known = [Anchor(m.offset_tokens, m.owner) for m in self.marks]
        return [*known, Anchor(prompt, PRIVATE), Anchor(prompt + self.answer, GENERATED)]


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
        ),
        st.tuples(
            st.just("hold"), st.lists(st.integers(0, 5), min_size=1, max_size=2, unique=True)
        ),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(1, 30)),
        st.tuples(st.just("hint"), st.lists(st.integers(0, 5), max_size=3, unique=True)),
    ),
    min_size=5,
    max_size=30,
)


class Twins:
    """The same operations on our reference tree and on SGLang's."""

    def __init__(self, retention: str, page: int) -> None:
        sizes = {"protect_anchors": 2, "protect_share": 0.3}
        self.sglang = build_cache(
            "dart", 4000, page_size=page, context=128, retention=retention, **sizes
        )
        self.ours = PrefixCache(retention, pool_tokens=4000, page_size=page, **sizes)
        self.driver = CacheDriver(self.sglang)
        self.held: list[tuple[CacheRequest, Any]] = []
        self.gone: list[tuple[int, int, int]] = []
        count = self.sglang.tree_core.evicted
        self.sglang.tree_core.evicted = lambda node: (self.gone.append(facts(node)), count(node))
        self.page = page

    def start(self, prompt: Prompt, **hints: Any) -> CacheRequest:
        request = prompt.request(**hints)
        if hints:
            table = hints["demand"]
            rows = tuple(Demand(bytes.fromhex(k), p, n) for k, p, n in table["rows"])
            self.ours.hint(DemandTable(table["version"], rows))
        self.ours.observe_request()
        assert self.driver.admit(request)
        matched = self.ours.match(prompt.path)
        assert matched.tokens == request.prefix_len
        self.driver.prefill(request)
        self.ours.insert(prompt.path, anchors=prompt.anchors())
        return request

    def serve(self, prompt: Prompt, **hints: Any) -> None:
        request = self.start(prompt, **hints)
        assert self.driver.generate(request, tokens_of(prompt.whole[-1:]))
        self.driver.finish(request)
        counted = sum(a.tokens for a in prompt.path) // self.page * self.page
        self.ours.insert(prompt.whole, anchors=prompt.anchors(), counted_tokens=counted)
        if prompt.answer:  # SGLang then inserts the prompt by itself, which cuts at its end
            self.ours.insert(prompt.path, anchors=prompt.anchors(), counted_tokens=counted)

    def hold(self, prompt: Prompt) -> None:
        request = self.start(prompt)
        node = self.ours.match(prompt.path, sum(a.tokens for a in prompt.path)).node
        self.ours.lock(node)
        self.held.append((request, node))

    def release(self, index: int) -> None:
        request, node = self.held.pop(index % len(self.held))
        self.driver.drop(request)
        self.ours.unlock(node)

    def evict(self, tokens: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.gone.clear()
        self.sglang.evict(EvictParams(num_tokens=tokens))
        evicted = self.ours.evict(tokens)
        assert self.gone == [facts(node) for node in evicted.nodes]

    def check(self) -> None:
        self.ours.check_integrity()
        self.sglang.tree_core.check_integrity()
        theirs = sorted((*facts(n), n.protected) for n in self.sglang.tree_core.nodes())
        assert theirs == sorted((*facts(n), n.protected) for n in self.ours.tree)


def facts(node: Any) -> tuple[int, int, int, bytes, bytes]:
    """What a node is in either tree, without its identity."""
    return node.start, node.end, int(node.kind), node.segment or b"", node.path_key or b""


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("retention", list(RETENTION))
@given(operations=operations)
@settings(max_examples=25, deadline=None)
def test_sglangs_tree_and_the_reference_tree_evict_the_same_in_the_same_order(
    retention, page, operations
):
    twins = Twins(retention, page)
    for turn, (name, *args) in enumerate(operations):
        if name == "serve":
            twins.serve(Prompt(args[0], b"%d" % turn, args[1], marked=args[2]))
        elif name == "hold" and len(twins.held) < 8:
            twins.hold(Prompt(args[0], b"%d" % turn))
        elif name == "release" and twins.held:
            twins.release(args[0])
        elif name == "evict":
            twins.evict(args[0])
        elif name == "hint":
            rows = tuple(Demand(DOCS[n].id, 1e6 * (n + 1), i) for i, n in enumerate(args[0]))
            twins.serve(Prompt([5], b"%d" % turn), demand=dump_demand(DemandTable(turn, rows)))
        twins.check()
    while twins.held:
        twins.release(0)
    twins.evict(10_000)
    twins.driver.check_pool()
    twins.sglang.check_integrity()


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


SEEDED = """
from loadgen.bench.tree_arms import CacheDriver, CacheRequest, build_cache, prepare_process
prepare_process()
from prism_ray.dart import AnchorMark, NodeKind
from prism_ray.dart.hints import dump_demand
from prism_ray.model import Demand, DemandTable
cache = build_cache("dart", 600, context=256)
driver, gone = CacheDriver(cache), []
cache.tree_core.evicted = lambda node: gone.append((node.start, node.end, (node.segment or b"").hex()))
for turn in range(60):
    docs = [(turn * 7 + i * i) % 11 for i in range(3)]
    names = [bytes([d]) * 16 for d in docs]
    ids = [d * 1000 + i for d in docs for i in range(40)] + [turn + 500_000]
    marks = [AnchorMark(40 * (i + 1), NodeKind.REUSABLE, n, n) for i, n in enumerate(names)]
    rows = tuple(Demand(bytes([d]) * 16, float((d * turn) % 5)) for d in range(11))
    driver.serve(CacheRequest(str(turn), ids, marks, dump_demand(DemandTable(turn, rows))))
cache.check_integrity()
print("EVICTED", gone)
"""


def test_two_processes_with_different_hash_seeds_evict_the_same_nodes():
    paths = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SEEDED],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        )
        for seed in ("1", "2")
    ]
    outputs = [run.communicate(timeout=300)[0] for run in runs]
    evicted = [
        line for output in outputs for line in output.splitlines() if line.startswith("EVICTED")
    ]
    assert len(evicted) == 2
    assert evicted[0] == evicted[1]
    assert evicted[0].count("(") > 50
