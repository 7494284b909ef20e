"""What the probe says of the cache: along with reports, alone where none goes, a beat in silence."""

from __future__ import annotations

import logging

import pytest

from prism_ray import cache_news
from prism_ray.cache_news import CacheNews, Span
from prism_ray.dart import NodeKind
from prism_ray.dart.anchors import AnchorMark
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.engine.sglang_events import Report, ReportKind, decode
from prism_ray.engine.sglang_probe import BEAT_S, LINGER_S, GuardedObserver, Probe

from .test_sglang_probe import Request, Sent, admit, end

MARKS = (AnchorMark(10, NodeKind.REUSABLE, b"a", b"A"), AnchorMark(30, NodeKind.PRIVATE))


class Scheduler:
    """A probe with a ledger, on a clock of its own."""

    def __init__(self) -> None:
        self.sent = Sent()
        self.now_s = 5.0
        self.ledger = CacheLedger(lambda: [(b"W", 0, 7)])
        self.probe = Probe(self.sent, clock=lambda: self.now_s, ledger=self.ledger)
        self.seen = 0

    def reports(self) -> list[Report]:
        """Those that are new."""
        reports = [decode(message) for message in self.sent.messages[self.seen :]]
        self.seen += len(reports)
        return reports

    def news(self) -> list[tuple[ReportKind, CacheNews | None]]:
        return [(r.kind, cache_news.decode(r.cache) if r.cache else None) for r in self.reports()]


def test_the_hello_says_that_the_cache_is_empty() -> None:
    assert Scheduler().news() == [(ReportKind.HELLO, CacheNews(0, 0))]


def test_without_a_ledger_nothing_is_said() -> None:
    sent = Sent()
    probe = Probe(sent, clock=lambda: 0.0)
    probe.want_snapshot()
    probe.polled()
    assert [decode(message).cache for message in sent.messages] == [b""]


def test_news_ride_along_with_the_next_report() -> None:
    scheduler, request = Scheduler(), Request()
    admit(scheduler.probe, request)
    scheduler.reports()
    scheduler.ledger.inserted(MARKS, 12)
    end(scheduler.probe, request)
    assert scheduler.news() == [
        (ReportKind.ENDED, CacheNews(0, 1, (Span(b"A", 0, 10),))),
        (ReportKind.FREED, None),
    ]


def test_news_that_find_no_report_go_alone_after_a_while() -> None:
    scheduler = Scheduler()
    scheduler.reports()
    scheduler.ledger.inserted(MARKS, 12)
    scheduler.probe.polled()
    assert scheduler.news() == []
    scheduler.now_s += 2 * LINGER_S
    scheduler.probe.polled()
    scheduler.probe.polled()
    assert scheduler.news() == [(ReportKind.CACHE, CacheNews(0, 1, (Span(b"A", 0, 10),)))]


def test_silence_is_broken_by_a_beat() -> None:
    scheduler = Scheduler()
    scheduler.reports()
    scheduler.now_s += BEAT_S
    scheduler.probe.polled()
    scheduler.probe.polled()
    assert scheduler.news() == [(ReportKind.CACHE, CacheNews(0, 1))]
    scheduler.now_s += BEAT_S
    scheduler.probe.polled()
    assert scheduler.news() == [(ReportKind.CACHE, CacheNews(0, 2))]


def test_a_snapshot_is_a_walk_and_goes_with_whatever_comes_first() -> None:
    scheduler = Scheduler()
    scheduler.reports()
    scheduler.probe.want_snapshot()
    scheduler.probe.polled()
    walked = (Span(b"W", 0, 7),)
    assert scheduler.news() == [(ReportKind.CACHE, CacheNews(0, 1, walked, 0, 1))]
    scheduler.probe.want_snapshot()
    admit(scheduler.probe, Request())
    assert scheduler.news() == [(ReportKind.STARTED, CacheNews(0, 2, walked, 0, 1))]


def test_many_messages_go_before_the_report_that_brings_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prism_ray.engine.cache_ledger.SPANS_MAX", 1)
    scheduler = Scheduler()
    scheduler.reports()
    keys = (b"A", b"B", b"C")
    scheduler.ledger.inserted(
        [AnchorMark(10 * n + 10, NodeKind.REUSABLE, b"", key) for n, key in enumerate(keys)], 30
    )
    admit(scheduler.probe, Request())
    reports = scheduler.reports()
    assert [r.kind for r in reports] == [ReportKind.CACHE, ReportKind.CACHE, ReportKind.STARTED]
    assert [r.sequence for r in reports] == [1, 2, 3]
    assert [cache_news.decode(r.cache).sequence for r in reports] == [1, 2, 3]


class Broken(CacheLedger):
    def inserted(self, marks: object, resident_tokens: int) -> None:
        raise RuntimeError("a mark that nobody foresaw")


def test_an_error_in_the_ledger_costs_a_snapshot_and_never_the_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Broken()
    observer = GuardedObserver(ledger)
    with caplog.at_level(logging.ERROR):
        observer.inserted(MARKS, 12)
        observer.inserted(MARKS, 12)
    assert (observer.errors, ledger.snapshot_wanted, len(caplog.records)) == (2, True, 1)
