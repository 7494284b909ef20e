"""The probe inside SGLang's scheduler, driven the way the scheduler drives its cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from prism_ray.engine.sglang_events import Report, ReportKind, decode
from prism_ray.engine.sglang_probe import Probe

STARTED, ENDED, FREED = ReportKind.STARTED, ReportKind.ENDED, ReportKind.FREED


class Reason:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def to_json(self) -> dict[str, str]:
        return {"type": self.kind}


@dataclass
class Request:
    """The attributes of SGLang's Req that the probe reads."""

    rid: str = "a"
    origin_input_ids: list[int] = field(default_factory=lambda: [0] * 10)
    output_ids: list[int] = field(default_factory=list)
    prefix_len: int = 4
    cached_tokens: int = 4
    finished_reason: Any = None
    to_finish: Any = None
    kv: Any = field(default_factory=lambda: SimpleNamespace(holds_kv=True))

    def finished(self) -> bool:
        return self.finished_reason is not None


class Sent:
    """A channel that keeps what was sent."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.messages.append(message)

    def reports(self) -> list[Report]:
        return [decode(message) for message in self.messages][1:]

    def kinds(self) -> list[ReportKind]:
        return [report.kind for report in self.reports()]


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def probe(sent: Sent) -> Probe:
    return Probe(sent, clock=lambda: 5.0)


def admit(probe: Probe, request: Request) -> None:
    probe.matched(request)
    probe.admitted(request.rid)


def end(probe: Probe, request: Request, kind: str = "stop") -> None:
    request.finished_reason = Reason(kind)
    request.output_ids = [1, 2, 3]
    probe.inserted(request, 12)
    probe.released(request)


def test_it_says_hello_first(sent: Sent, probe: Probe) -> None:
    assert decode(sent.messages[0]).kind is ReportKind.HELLO


def test_a_life_is_reported_with_its_numbers(sent: Sent, probe: Probe) -> None:
    request = Request()
    admit(probe, request)
    probe.inserted(request, 10)
    end(probe, request)
    started, ended, freed = sent.reports()
    assert started == Report(1, 0, STARTED, "a", 5.0, 10, 4)
    assert ended == Report(2, 0, ENDED, "a", 5.0)
    assert freed == Report(3, 0, FREED, "a", 5.0, 10, 4, 3, False, stats=(0,))


def test_retractions_and_the_caches_own_counts_go_with_every_end(sent: Sent) -> None:
    probe = Probe(sent, clock=lambda: 5.0, stats=lambda: (7, 8))
    request = Request()
    admit(probe, request)
    probe.released(request)  # not finished: it will be admitted again
    end(probe, request)
    assert sent.reports()[-1].stats == (1, 7, 8)


def test_a_match_that_admits_nobody_is_no_start(sent: Sent, probe: Probe) -> None:
    waiting = Request()
    for _ in range(3):
        probe.matched(waiting)
    assert sent.kinds() == []
    admit(probe, waiting)
    assert sent.kinds() == [STARTED]


def test_an_admission_belongs_to_the_request_matched_last(sent: Sent, probe: Probe) -> None:
    probe.matched(Request("a"))
    probe.admitted("b")
    assert sent.kinds() == []


def test_a_chunk_of_a_prefill_does_not_end_it(sent: Sent, probe: Probe) -> None:
    request = Request()
    admit(probe, request)
    probe.inserted(request, 6)
    assert sent.kinds() == [STARTED]
    probe.inserted(request, 10)
    assert sent.kinds() == [STARTED, ENDED]


def test_a_request_of_one_token_ends_its_prefill_when_it_finishes(sent: Sent, probe: Probe) -> None:
    request = Request()
    admit(probe, request)
    end(probe, request)
    assert sent.kinds() == [STARTED, ENDED, FREED]


def test_a_retracted_request_starts_once_and_goes_on(sent: Sent, probe: Probe) -> None:
    request = Request()
    admit(probe, request)
    probe.inserted(request, 10)
    probe.released(request)
    admit(probe, request)
    probe.inserted(request, 11)
    end(probe, request)
    assert sent.kinds() == [STARTED, ENDED, FREED]


def test_a_request_dropped_from_the_queue_is_freed_as_aborted(sent: Sent, probe: Probe) -> None:
    probe.dropped("queued")
    (freed,) = sent.reports()
    assert (freed.kind, freed.request_id, freed.aborted) == (FREED, "queued", True)


def test_a_drop_of_a_request_that_holds_kv_waits_for_its_release(sent: Sent, probe: Probe) -> None:
    request = Request()
    admit(probe, request)
    probe.dropped("a")
    assert sent.kinds() == [STARTED]
    request.finished_reason = Reason("abort")
    probe.released(request)
    assert sent.kinds() == [STARTED, FREED]
    assert sent.reports()[-1].aborted


def test_a_drop_of_a_retracted_request_is_its_end(sent: Sent, probe: Probe) -> None:
    request = Request()
    admit(probe, request)
    probe.released(request)
    request.kv.holds_kv = False
    probe.dropped("a")
    assert sent.kinds() == [STARTED, FREED]


def test_a_request_admitted_only_to_be_aborted_reports_its_freeing_alone(
    sent: Sent, probe: Probe
) -> None:
    request = Request(to_finish=Reason("abort"))
    admit(probe, request)
    end(probe, request, "abort")
    assert sent.kinds() == [FREED]


def test_an_id_can_come_back_after_it_was_freed(sent: Sent, probe: Probe) -> None:
    for _ in range(2):
        request = Request()
        admit(probe, request)
        end(probe, request)
    assert sent.kinds() == [STARTED, ENDED, FREED] * 2


def test_evicted_tokens_travel_with_every_report(sent: Sent, probe: Probe) -> None:
    probe.evicted(100)
    probe.evicted(20)
    admit(probe, Request())
    assert sent.reports()[0].evicted_tokens_total == 120


def test_an_error_is_logged_once_counted_and_kept_from_the_scheduler(
    probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            probe.released(object())
    assert probe.errors == 3
    assert len(caplog.records) == 1
