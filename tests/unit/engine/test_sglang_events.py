"""The ledger that turns the scheduler's reports and ends of responses into an engine's events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_ray.engine.base import EngineEvent, Finished, PrefillEnded, PrefillStarted
from prism_ray.engine.sglang_events import (
    EventLedger,
    Report,
    ReportKind,
    ResponseEnd,
    decode,
    encode,
)
from prism_ray.model import Outcome

STARTED, ENDED, FREED = ReportKind.STARTED, ReportKind.ENDED, ReportKind.FREED


def report(kind: ReportKind, request_id: str = "a", sequence: int = 0, **fields: object) -> Report:
    return Report(sequence, 0, kind, request_id, 1.0, **fields)  # type: ignore[arg-type]


def test_a_report_survives_the_wire() -> None:
    sent = Report(7, 99, FREED, "ab", 12.5, 300, 200, 4, True)
    assert decode(encode(sent)) == sent


@pytest.mark.parametrize(
    "message", [b"", b"\x93\x00\x00\xa1x", encode(Report(0, 0, FREED, "a", 1))[:-1]]
)
def test_a_stranger_on_the_channel_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="not a report"):
        decode(message)


def test_a_life_is_told_once_and_in_order() -> None:
    ledger = EventLedger()
    ledger.submitted("a", 300)
    assert (ledger.running, ledger.waiting) == (0, 1)
    told = ledger.reported(report(STARTED, prompt_tokens=300, cached_tokens=250))
    assert told == [PrefillStarted("a", 1.0, 300, 250)]
    assert (ledger.running, ledger.waiting) == (1, 0)
    assert ledger.reported(report(STARTED)) == []
    assert ledger.reported(report(ENDED)) == [PrefillEnded("a", 1.0)]
    assert ledger.reported(report(ENDED)) == []
    freed = report(FREED, prompt_tokens=300, cached_tokens=250, output_tokens=4)
    assert ledger.reported(freed) == [Finished("a", 1.0, Outcome.FINISHED, 300, 250, 4)]
    assert ledger.reported(freed) == []
    assert (ledger.running, ledger.waiting) == (0, 0)


def _finish_of(ledger: EventLedger, aborted: bool) -> Outcome:
    (event,) = ledger.reported(report(FREED, aborted=aborted))
    assert isinstance(event, Finished)
    return event.outcome


def test_an_abort_that_was_asked_for_is_aborted_and_another_is_failed() -> None:
    for asked, outcome in ((True, Outcome.ABORTED), (False, Outcome.FAILED)):
        ledger = EventLedger()
        ledger.submitted("a", 3)
        if asked:
            ledger.abort_requested("a")
        assert _finish_of(ledger, aborted=True) is outcome


def test_an_abort_that_came_too_late_changes_nothing() -> None:
    ledger = EventLedger()
    ledger.submitted("a", 3)
    ledger.abort_requested("a")
    assert _finish_of(ledger, aborted=False) is Outcome.FINISHED


def test_a_request_dropped_from_the_queue_finishes_with_its_own_length() -> None:
    ledger = EventLedger()
    ledger.submitted("a", 30)
    ledger.abort_requested("a")
    assert ledger.reported(report(FREED, aborted=True)) == [
        Finished("a", 1.0, Outcome.ABORTED, 30, 0, 0)
    ]


def test_without_a_report_the_responses_end_counts_after_the_grace() -> None:
    ledger = EventLedger(grace_s=5.0)
    ledger.submitted("a", 30)
    ledger.response_ended("a", ResponseEnd(30, 10, 4), now_s=100.0)
    assert ledger.overdue(104.9) == []
    assert ledger.overdue(105.0) == [Finished("a", 105.0, Outcome.FINISHED, 30, 10, 4)]
    assert ledger.overdue(200.0) == []
    assert ledger.reported(report(FREED)) == []


def test_a_request_that_still_runs_is_never_overdue() -> None:
    ledger = EventLedger()
    ledger.submitted("a", 30)
    assert ledger.overdue(1e9) == []


def test_a_withdrawn_request_leaves_no_trace() -> None:
    ledger = EventLedger()
    ledger.submitted("a", 30)
    ledger.withdrawn("a")
    assert "a" not in ledger
    assert ledger.reported(report(STARTED)) == []
    ledger.submitted("a", 30)


def test_a_second_submission_of_a_held_id_is_refused() -> None:
    ledger = EventLedger()
    ledger.submitted("a", 30)
    with pytest.raises(ValueError, match="already"):
        ledger.submitted("a", 30)


def test_gaps_in_the_sequence_are_counted() -> None:
    ledger = EventLedger()
    for sequence in (0, 1, 4, 5, 7):
        ledger.reported(report(ReportKind.HELLO, "", sequence))
    assert ledger.lost_reports == 3


def test_evictions_are_a_running_total() -> None:
    ledger = EventLedger()
    ledger.reported(Report(0, 500, ReportKind.HELLO, "", 0.0))
    ledger.reported(Report(1, 750, STARTED, "unknown", 0.0))
    assert ledger.evicted_tokens_total == 750


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "withdraw", "abort", "end", "overdue", *ReportKind]),
        st.sampled_from("abc"),
    ),
    max_size=60,
)


@given(_STEPS)
def test_whatever_arrives_each_submission_finishes_at_most_once(
    steps: list[tuple[str, str]],
) -> None:
    ledger = EventLedger(grace_s=1.0)
    held: set[str] = set()
    told: dict[str, list[type]] = {}

    def take(events: list[EngineEvent]) -> None:
        for event in events:
            assert event.request_id in held
            told[event.request_id].append(type(event))
            if isinstance(event, Finished):
                held.discard(event.request_id)

    for now, (what, request_id) in enumerate(steps):
        if what == "submit" and request_id not in held:
            ledger.submitted(request_id, 1)
            held.add(request_id)
            told[request_id] = []
        elif what == "withdraw":
            ledger.withdrawn(request_id)
            held.discard(request_id)
        elif what == "abort":
            ledger.abort_requested(request_id)
        elif what == "end":
            ledger.response_ended(request_id, ResponseEnd(), float(now))
        elif what == "overdue":
            take(ledger.overdue(float(now)))
        elif what != "submit":
            take(ledger.reported(report(ReportKind(what), request_id)))
        ledger.check_integrity()
        assert ledger.running + ledger.waiting == len(held)
    for request_id in list(held):
        take(ledger.reported(report(FREED, request_id)))
    assert all(life.count(kind) <= 1 for life in told.values() for kind in life)
    assert (ledger.running, ledger.waiting) == (0, 0)
