"""The comparison of clients' books with the server's: every way in which they may differ shows."""

from __future__ import annotations

from collections import Counter

import pytest

from loadgen.rows import Outcome, RequestRow
from tests.faults.books import Look, differences, ended_near, untold


def row(outcome: Outcome, status: int | None = 200, code: str | None = None) -> RequestRow:
    return RequestRow("r", 0.0, outcome=outcome, status=status, error_code=code, ended_s=5.0)


ROWS = [
    *[row(Outcome.ANSWERED)] * 5,
    row(Outcome.REFUSED, 503, "no_replica"),
    row(Outcome.STREAM_ERROR, 200, "internal_error"),
    row(Outcome.TIMEOUT),  # left in the middle of an answer
]
COUNTED = Counter({"ok": 7, "503": 1, "500": 1, "client_gone": 1})
PROBES = Counter({"ok": 2})


def test_books_that_agree_have_no_differences() -> None:
    assert differences(ROWS, PROBES, COUNTED, 0) == []


@pytest.mark.parametrize(
    "change",
    [
        {"ok": -1},
        {"ok": 2},
        {"503": -1},
        {"500": 2},
        {"client_gone": -1},
        {"client_gone": 1},
        {"408": 2},
        {"ok": -1, "500": 2, "client_gone": -1},
    ],
)
def test_what_was_counted_too_often_or_not_at_all_shows(change: dict[str, int]) -> None:
    counted = Counter(COUNTED)
    counted.update(change)
    assert differences(ROWS, PROBES, counted, 0)


def test_one_that_left_as_its_answer_ended_may_count_as_answered() -> None:
    counted = Counter(COUNTED)
    counted.update({"ok": 1, "client_gone": -1})
    assert differences(ROWS, PROBES, counted, 0) == []


@pytest.mark.parametrize(
    "lost", [row(Outcome.CONNECTION, None), row(Outcome.REFUSED, 500), row(Outcome.TIMEOUT, None)]
)
def test_one_that_no_ingress_may_have_had_need_not_be_counted(lost: RequestRow) -> None:
    rows = [*ROWS, lost]
    assert differences(rows, PROBES, COUNTED, 0) == []
    assert differences(rows, PROBES, COUNTED + Counter({"client_gone": 1}), 0) == []
    assert differences(rows, PROBES, COUNTED + Counter({"client_gone": 2}), 0)


def test_of_an_ingress_that_died_the_last_counts_may_be_missing() -> None:
    counted = COUNTED - Counter({"ok": 2})
    assert differences(ROWS, PROBES, counted, 1)
    assert differences(ROWS, PROBES, counted, 2) == []


def test_qas_must_have_been_told_each_count_once() -> None:
    assert untold(COUNTED, COUNTED, 0) == []
    for change in (1, -1):
        told = Counter(COUNTED)
        told.update({"ok": change})
        assert untold(COUNTED, told, 0)
        assert untold(COUNTED, told, 1) == []


def test_what_ended_long_before_or_after_a_death_was_seen() -> None:
    look = Look(105.0, Counter())
    assert ended_near(ROWS, 100.0, [look]) == len(ROWS) + 1
    assert ended_near(ROWS, 80.0, [look]) == 1
    assert ended_near(ROWS, 120.0, [look]) == 1
    assert ended_near(ROWS, 100.0, []) == 0
