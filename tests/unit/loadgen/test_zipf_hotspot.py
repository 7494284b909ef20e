"""The paper's trace has the shape that the paper gives it."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from loadgen.traces.zipf_hotspot import ZipfHotspot


def test_prompts_have_the_papers_lengths() -> None:
    skeleton = next(ZipfHotspot(0).skeletons())
    assert skeleton.system is not None
    assert skeleton.system.tokens == 214
    assert [s.tokens for s in skeleton.segments] == [128] * 5
    assert skeleton.prompt_tokens == 1029
    assert skeleton.runs == ((0, 1, 2, 3, 4),)


def test_seven_of_ten_requests_have_three_hot_documents_and_all_are_distinct() -> None:
    skeletons = list(islice(ZipfHotspot(3).skeletons(), 4000))
    uses = Counter(s.id for skeleton in skeletons for s in skeleton.segments)
    hot = {segment for segment, _ in uses.most_common(20)}
    hot_slots = Counter(len({s.id for s in k.segments} & hot) for k in skeletons)
    assert set(hot_slots) == {0, 3}
    assert hot_slots[3] / 4000 == pytest.approx(0.7, abs=0.02)
    assert all(len({s.id for s in k.segments}) == 5 for k in skeletons)
    assert len(uses) == 981


def test_hot_documents_fall_off_by_zipf() -> None:
    trace = ZipfHotspot(3, slots=1, hot_slots=1, hot_rate=1.0)
    uses = Counter(k.segments[0].id for k in islice(trace.skeletons(), 20_000))
    (_, first), (_, second) = uses.most_common(2)
    assert first / second == pytest.approx(2**1.2, rel=0.1)


def test_the_seed_decides_and_the_rate_changes_arrivals_only() -> None:
    slow = list(islice(ZipfHotspot(1).tickets(rate_per_s=10), 500))
    fast = list(islice(ZipfHotspot(1).tickets(rate_per_s=20), 500))
    assert [t.skeleton for t in slow] == [t.skeleton for t in fast]
    assert slow[-1].arrival_s == pytest.approx(2 * fast[-1].arrival_s)
    assert slow[-1].arrival_s == pytest.approx(50, rel=0.2)
    assert [t.skeleton for t in islice(ZipfHotspot(2).tickets(), 500)] != [t.skeleton for t in slow]


def test_sets_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        ZipfHotspot(0, passages=22, hot_passages=20)
