"""Sharing as described is what token by token comparison finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces import TraceRequest
from loadgen.traces.base import digest
from loadgen.traces.describe import key_portion, sharing, skew, summary
from prism_ray.model import NO_GAP, Atom, Segment, SegmentKind, Skeleton

LENGTHS = {name: 1 + number for number, name in enumerate("abcde")}
SYSTEM = Segment(b"system", 3, SegmentKind.SYSTEM)


def request(number: int, names: str, private: int = 2, gap: int = 1) -> TraceRequest:
    segments = tuple(Segment(digest(n), LENGTHS[n]) for n in names)
    gaps = (Atom(b"gap", gap) if gap else NO_GAP,) * len(segments)
    return TraceRequest(f"r{number}", Skeleton(SYSTEM, segments, gaps, private), 2)


def tokens(request: TraceRequest) -> list[tuple[bytes, int]]:
    """The prompt token by token; a token is known by its atom and place, so atoms never half match."""
    return [(a.id, i) for a in request.prompt() for i in range(a.tokens)]


def common(one: list[object], other: list[object]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


prompts = st.lists(st.text("abcde", max_size=4), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(prompts)
def test_shared_prefixes_are_those_of_a_comparison_of_all_pairs(names: list[str]) -> None:
    requests = [request(n, text) for n, text in enumerate(names)]
    texts = [tokens(r) for r in requests]
    total = sum(map(len, texts))
    earlier = sum(max((common(t, u) for u in texts[:i]), default=0) for i, t in enumerate(texts))
    anyone = sum(
        max((common(t, u) for j, u in enumerate(texts) if j != i), default=0)
        for i, t in enumerate(texts)
    )
    found = sharing(requests)
    assert found["prefix_repeated"] == pytest.approx(earlier / total)
    assert found["prefix_shared"] == pytest.approx(anyone / total)


@settings(max_examples=60, deadline=None)
@given(prompts)
def test_repeats_at_any_position_are_segments_that_an_earlier_request_had(names: list[str]) -> None:
    seen: set[str] = set()
    repeated = total = 0
    for text in names:
        repeated += sum(LENGTHS[n] for n in text if n in seen)
        total += sum(LENGTHS[n] for n in text)
        seen |= set(text)
    found = sharing([request(n, text) for n, text in enumerate(names)])
    assert found["segments_anywhere_repeated"] == pytest.approx(repeated / total if total else 0)
    assert found["segments_prefix_repeated"] <= found["segments_anywhere_repeated"] + 1e-12


def test_what_was_generated_counts_as_seen_where_the_next_prompt_continues_it() -> None:
    first = TraceRequest(
        "r0", Skeleton(None, (), (), 2), 5, output=(Atom(b"said", 5),), private=(Atom(b"h", 2),)
    )
    second = TraceRequest("r1", Skeleton(None, (Segment(b"said", 5),), (Atom(b"h", 2),), 3), 1)
    assert sharing([first, second])["prefix_repeated"] == pytest.approx(7 / 12)
    unnamed = TraceRequest("r0", Skeleton(None, (), (), 2), 5, private=(Atom(b"h", 2),))
    assert sharing([unnamed, second])["prefix_repeated"] == pytest.approx(2 / 12)


def test_skew_counts_requests_that_contain_a_segment_once() -> None:
    found = skew([request(0, "aab"), request(1, "ac"), request(2, "d")])
    assert found["uses_max"] == 2
    assert (found["segments"], found["segments_shared"]) == (4, 1)
    assert found["uses_mean"] == pytest.approx(5 / 4)


def test_the_key_portion_is_the_deepest_shared_node_longer_than_all_before_it() -> None:
    # e (5 and its gap) outweighs the system prefix (3); b (2) after it outweighs nothing.
    requests = [request(0, "eb"), request(1, "eb"), request(2, "ec"), request(3, "a")]
    found = key_portion(requests)
    assert found["distinct"] == 2  # e for three of them, the system prefix for the last
    assert found["requests"] == pytest.approx((3 + 4) / 2)


def test_nothing_is_described_as_zeros() -> None:
    assert set(sharing([]).values()) == {0.0}
    assert summary([])["mean"] == 0.0
    assert skew([])["uses_max"] == 0
