"""What an observer of the cache is told equals what a walk of the cache finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.dart import (
    AnchorMark,
    DemandState,
    Future,
    NodeKind,
    PrefixCache,
    path_keys,
    skeleton_anchors,
    skeleton_marks,
)
from prism_ray.model import Atom, Demand, DemandTable, Segment, Skeleton

SYSTEM = Segment(b"sys", 5)
DOCS = [Segment(bytes([n]), 3 + n, run=0) for n in range(6)]
GAP = Atom(b"gap", 2)


class Replica:
    """Keeps residency by events alone, as the control plane does."""

    def __init__(self) -> None:
        self.resident: dict[bytes, tuple[int, int]] = {}
        self.private_tokens = 0

    def inserted(self, marks: Sequence[AnchorMark], resident_tokens: int) -> None:
        start = 0
        for mark in marks:
            end = min(mark.offset_tokens, resident_tokens)
            if mark.path_key is not None and end > start:
                _, before = self.resident.get(mark.path_key, (start, start))
                self.resident[mark.path_key] = (start, max(end, before))
            start = mark.offset_tokens

    def evicted(self, path_key: bytes | None, kind: NodeKind, start: int, end: int) -> None:
        if path_key is None:
            self.private_tokens += end - start
            return
        first, last = self.resident[path_key]
        assert first <= start < end == last
        if start == first:
            del self.resident[path_key]
        else:
            self.resident[path_key] = (first, start)

    def flushed(self) -> None:
        self.resident.clear()


def skeleton(docs: Sequence[int], private: int = 3) -> Skeleton:
    segments = tuple(DOCS[n] for n in docs)
    return Skeleton(SYSTEM, segments, (GAP,) * len(segments), private)


def whole_path(prompt: Skeleton, name: bytes) -> tuple[Atom, ...]:
    return (*prompt.path(prompt.native_order), Atom(name, prompt.private_tokens))


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("insert"),
            st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
            st.integers(1, 60),
        ),
        st.tuples(st.just("evict"), st.integers(1, 30)),
        st.tuples(st.just("hint"), st.lists(st.integers(0, 5), max_size=3, unique=True)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("page", [1, 4])
@given(operations=operations)
@settings(max_examples=60, deadline=None)
def test_events_alone_give_the_residency_that_a_walk_finds(page, operations):
    replica = Replica()
    cache = PrefixCache("dart", pool_tokens=200, page_size=page, observer=replica)
    for turn, (name, *args) in enumerate(operations):
        if name == "insert":
            prompt = skeleton(args[0])
            anchors = skeleton_anchors(prompt, prompt.native_order)
            tokens = min(args[1], prompt.prompt_tokens)
            cache.insert(whole_path(prompt, b"q%d" % turn), tokens, anchors)
        elif name == "evict":
            cache.evict(args[0])
        else:
            rows = tuple(Demand(DOCS[n].id, 1.0 + n) for n in args[0])
            cache.hint(DemandTable(turn, rows))
        cache.check_integrity()
        walked = {key: (start, end) for key, start, end in cache.walk() if end > start}
        assert walked == replica.resident


def test_a_row_for_a_place_outranks_the_row_of_its_text():
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=0)
    here, there = skeleton((0,)), skeleton((1, 0))
    for name, prompt in ((b"p", here), (b"q", there)):
        anchors = skeleton_anchors(prompt, prompt.native_order)
        cache.insert(whole_path(prompt, name), anchors=anchors)
    place = path_keys(there.path(there.native_order))[-1]
    cache.hint(DemandTable(1, (Demand(DOCS[0].id, 5.0), Demand(place, 1.0))))
    order = [node for node in cache.eviction_order() if node.segment == DOCS[0].id]
    assert [node.path_key == place for node in order if node.anchored] == [True, False]


def test_belady_gives_up_what_is_used_last_and_first_what_is_never_used():
    prompts = [skeleton((0,)), skeleton((1,)), skeleton((2,))]
    keys = [[m.path_key for m in skeleton_marks(p, p.native_order) if m.path_key] for p in prompts]
    future = Future([*keys, keys[1], keys[0]])
    cache = PrefixCache("belady", pool_tokens=1000, demand=DemandState(future=future))
    for turn, prompt in enumerate(prompts):
        cache.observe_request(keys[turn])
        anchors = skeleton_anchors(prompt, prompt.native_order)
        cache.insert(whole_path(prompt, b"q%d" % turn), anchors=anchors)
    kept = [n.segment for n in cache.eviction_order() if n.anchored and n.segment]
    assert kept == [DOCS[2].id, DOCS[0].id, DOCS[1].id, b"sys"]
    cache.observe_request(keys[1])
    kept = [n.segment for n in cache.eviction_order() if n.anchored and n.segment]
    assert kept.index(DOCS[1].id) < kept.index(DOCS[0].id)


def test_belady_without_a_future_is_refused():
    with pytest.raises(ValueError, match="belady needs the future"):
        PrefixCache("belady", pool_tokens=1)
