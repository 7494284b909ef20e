"""The ledger of a cache: the least news of what it holds, and everything when that is asked for."""

from __future__ import annotations

import pytest

from prism_ray import cache_news
from prism_ray.cache_news import CacheNews, Span
from prism_ray.dart import NodeKind
from prism_ray.dart.anchors import AnchorMark
from prism_ray.engine import cache_ledger
from prism_ray.engine.cache_ledger import CacheLedger

SYSTEM, REUSABLE, PRIVATE = NodeKind.SYSTEM, NodeKind.REUSABLE, NodeKind.PRIVATE
MARKS = (
    AnchorMark(10, SYSTEM, b"s", b"S"),
    AnchorMark(30, REUSABLE, b"a", b"A"),
    AnchorMark(60, REUSABLE, b"b", b"B"),
    AnchorMark(70, PRIVATE),
)


@pytest.fixture
def ledger() -> CacheLedger:
    ledger = CacheLedger()
    ledger.take()
    return ledger


class TestNews:
    def test_the_first_finds_the_cache_empty(self) -> None:
        assert CacheLedger().take() == [CacheNews(0, 0)]

    def test_what_was_inserted_is_told_as_far_as_it_is_resident(self, ledger: CacheLedger) -> None:
        ledger.inserted(MARKS, 45)
        assert ledger.take() == [
            CacheNews(0, 1, (Span(b"S", 0, 10), Span(b"A", 10, 30), Span(b"B", 30, 45)))
        ]
        assert ledger.take() == []

    def test_only_what_changed_is_told(self, ledger: CacheLedger) -> None:
        ledger.inserted(MARKS, 45)
        ledger.take()
        ledger.inserted(MARKS, 90)
        ledger.inserted(MARKS, 90)
        assert ledger.take() == [CacheNews(0, 2, (Span(b"B", 30, 60),))]

    def test_a_shorter_insertion_takes_nothing_away(self, ledger: CacheLedger) -> None:
        ledger.inserted(MARKS, 60)
        ledger.inserted(MARKS, 20)
        assert ledger.spans() == {b"S": (0, 10), b"A": (10, 30), b"B": (30, 60)}

    def test_an_eviction_shortens_a_span_and_then_ends_it(self, ledger: CacheLedger) -> None:
        ledger.inserted(MARKS, 60)
        ledger.take()
        ledger.evicted(b"B", REUSABLE, 40, 60)
        assert ledger.take()[0].spans == (Span(b"B", 30, 40),)
        ledger.evicted(b"B", REUSABLE, 30, 40)
        assert ledger.take()[0].spans == (Span(b"B", 0, 0),)
        assert len(ledger) == 2

    def test_an_eviction_beyond_what_is_known_changes_nothing(self, ledger: CacheLedger) -> None:
        ledger.inserted(MARKS, 45)
        ledger.evicted(b"B", REUSABLE, 50, 60)
        ledger.evicted(b"never heard of", REUSABLE, 0, 60)
        assert ledger.spans() == {b"S": (0, 10), b"A": (10, 30), b"B": (30, 45)}

    def test_what_came_and_went_in_between_is_not_told(self, ledger: CacheLedger) -> None:
        ledger.inserted(MARKS, 30)
        ledger.take()
        ledger.inserted(MARKS, 60)
        ledger.evicted(b"B", REUSABLE, 30, 60)
        assert not ledger.has_news
        assert ledger.take() == []

    def test_spans_without_a_key_are_nobodys(self, ledger: CacheLedger) -> None:
        ledger.inserted(MARKS[3:], 70)
        ledger.evicted(None, PRIVATE, 0, 70)
        assert ledger.take() == []

    def test_a_flush_begins_a_new_incarnation_whatever_was_untold(
        self, ledger: CacheLedger
    ) -> None:
        ledger.inserted(MARKS, 60)
        ledger.flushed()
        assert ledger.take() == [CacheNews(1, 0)]
        ledger.inserted(MARKS, 10)
        assert ledger.take() == [CacheNews(1, 1, (Span(b"S", 0, 10),))]

    def test_many_changes_go_in_several_messages(
        self, ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache_ledger, "SPANS_MAX", 2)
        ledger.inserted(MARKS, 60)
        assert [(n.sequence, len(n.spans), n.parts) for n in ledger.take()] == [
            (1, 2, 0),
            (2, 1, 0),
        ]


class TestSnapshots:
    def test_a_snapshot_is_a_walk_of_the_cache_in_parts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache_ledger, "SPANS_MAX", 2)
        walked = [(b"S", 0, 10), (b"A", 10, 30), (b"C", 10, 20)]
        ledger = CacheLedger(lambda: walked)
        ledger.inserted(MARKS, 60)
        ledger.snapshot_wanted = True
        assert ledger.has_news
        assert ledger.take() == [
            CacheNews(0, 0, (Span(*walked[0]), Span(*walked[1])), 0, 2),
            CacheNews(0, 1, (Span(*walked[2]),), 1, 2),
        ]
        assert ledger.spans() == {b"S": (0, 10), b"A": (10, 30), b"C": (10, 20)}
        assert ledger.take() == []

    def test_a_snapshot_of_an_empty_cache_has_one_part(self, ledger: CacheLedger) -> None:
        ledger.snapshot_wanted = True
        assert ledger.take() == [CacheNews(0, 1, (), 0, 1)]

    def test_a_beat_is_numbered_and_says_nothing(self, ledger: CacheLedger) -> None:
        assert ledger.beat() == CacheNews(0, 1)


class TestWire:
    def test_news_survive_the_wire(self) -> None:
        news = CacheNews(3, 7, (Span(b"k" * 16, 5, 9), Span(b"l" * 16, 0, 0)), 1, 2)
        assert cache_news.decode(cache_news.encode(news)) == news

    @pytest.mark.parametrize(
        "message", [b"", b"\xc1", b"\x01", cache_news.encode(CacheNews(0, 0))[:3]]
    )
    def test_anything_else_is_refused(self, message: bytes) -> None:
        with pytest.raises(ValueError, match="no news of a cache"):
            cache_news.decode(message)

    def test_another_version_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache_news, "WIRE_VERSION", 2)
        message = cache_news.encode(CacheNews(0, 0))
        monkeypatch.undo()
        with pytest.raises(ValueError, match="version 2"):
            cache_news.decode(message)
