"""The journal remembers the newest attempt of the last requests, and no more."""

from __future__ import annotations

from dataclasses import replace

from prism_ray.dispatch.journal import Journal
from prism_ray.model import Decision, Lane
from prism_ray.placement import Choice

TURN = Choice("r", "turn")
DECISION = Decision("q", 0, "e", "r", 1, 0, (), Lane.HOT, 0.5, 10)


def test_the_newest_attempt_is_told() -> None:
    journal = Journal()
    journal.write(DECISION, TURN, 1.0)
    journal.write(replace(DECISION, attempt=1), Choice("r", "exploit", {"load_s": 2.0}), 2.0)
    told = journal.explain("q", 5.0)
    assert told is not None
    assert told["attempt"] == 1
    assert told["age_s"] == 3.0
    assert told["placement"] == {"kind": "exploit", "numbers": {"load_s": 2.0}}
    assert len(journal) == 1


def test_it_is_bounded_and_forgets_the_oldest() -> None:
    journal = Journal(limit=3)
    for number in range(5):
        journal.write(replace(DECISION, request_id=f"q{number}"), TURN, 0.0)
    assert len(journal) == 3
    assert journal.explain("q1", 0.0) is None
    assert journal.explain("q2", 0.0) is not None


def test_the_last_ones_are_told_newest_first() -> None:
    journal = Journal()
    for number in range(4):
        journal.write(replace(DECISION, request_id=f"q{number}"), TURN, float(number))
    journal.write(replace(DECISION, request_id="q1", attempt=1), TURN, 4.0)
    told = journal.last(3, 10.0)
    assert [(d["request_id"], d["age_s"]) for d in told] == [("q1", 6.0), ("q3", 7.0), ("q2", 8.0)]
    assert journal.last(0, 10.0) == []
