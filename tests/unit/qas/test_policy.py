"""QAS as a Scheduler: nothing is lost or doubled, rounds are frozen, calls out of turn are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.qas import Qas
from prism_ray.qas.policy import IDLE_REPLICAS_MAX

from .scenes import NoCache, add, dispatch, names, qas, take, ticket

PARAMS: list[dict[str, Any]] = [
    {},
    {"window_max": 3},
    {"kappa": 2, "bucket_segments": "signature"},
    {"hot_batch": "running", "batch_max": 4, "q_cold": 1},
    {"realign": "arrival", "front_order": "original", "lanes": "per_round"},
    {"pioneer": True, "table_taken": "after", "table_rows_max": 3},
]


class Life:
    """A scheduler and, beside it, where every request must be."""

    def __init__(self, scheduler: Qas) -> None:
        self.scheduler = scheduler
        self.queued: list[str] = []
        self.active: list[str] = []
        self.born = 0

    def add(self, letters: str) -> None:
        self.born += 1
        self.scheduler.add(ticket(f"q{self.born}", letters))
        self.queued.append(f"q{self.born}")

    def cancel(self, index: int) -> None:
        if self.queued:
            assert self.scheduler.cancel(self.queued.pop(index % len(self.queued)))

    def finish(self, index: int) -> None:
        if self.active:
            assert self.scheduler.finish(self.active.pop(index % len(self.active)))

    def refuse(self, letters: str, index: int) -> None:
        if self.active:
            name = self.active.pop(index % len(self.active))
            assert self.scheduler.finish(name)
            self.scheduler.add(ticket(name, letters), at_head=True)
            self.queued.insert(0, name)

    def play(self, replicas: str) -> None:
        opened = self.scheduler.open_round({replica: NoCache() for replica in "xy"})
        got = [(r, pick) for r in replicas for pick in take(opened, 1, r)]
        assert set(opened.close()) == {replica for replica, _ in got}
        for _, pick in got:
            pick.ticket.skeleton.check_order(pick.order)
            self.queued.remove(pick.ticket.request_id)
            self.active.append(pick.ticket.request_id)


LETTERS = st.text("abcdef", max_size=5)
INDEX = st.integers(0, 50)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), LETTERS),
        st.tuples(st.just("add"), LETTERS),
        st.tuples(st.just("cancel"), INDEX),
        st.tuples(st.just("finish"), INDEX),
        st.tuples(st.just("refuse"), LETTERS, INDEX),
        st.tuples(st.just("play"), st.text("xy", max_size=6)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("params", PARAMS)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_no_request_is_lost_or_doubled_and_counters_equal_a_recount(
    params: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    life = Life(qas(**params))
    for name, *arguments in steps:
        getattr(life, name)(*arguments)
        life.scheduler.check_integrity()
        assert [t.request_id for t in life.scheduler.waiting()] == life.queued
        assert len(life.scheduler) == len(life.queued)
        assert life.scheduler.describe()["active"] == len(life.active)


def test_when_all_is_over_only_the_last_dispatches_are_remembered_without_counts() -> None:
    scheduler = qas(batch_max=2, q_cold=1, memory_requests=0)
    add(scheduler, "1:ab", "2:cd", "3:ef", "4:gh")
    sent, _ = dispatch(scheduler, 3)
    assert scheduler.cancel("4")
    for name in names(sent):
        assert scheduler.finish(name)
    rows = scheduler.describe()["segments"]
    assert {(row["active"], row["queued"]) for row in rows} <= {(0, 0)}
    assert len(scheduler._counters) == 4, "two segments of each of the last two dispatches"
    scheduler.check_integrity()


def test_idle_replicas_are_forgotten_in_the_end() -> None:
    scheduler = qas()
    for number in range(2 * IDLE_REPLICAS_MAX):
        add(scheduler, f"q{number}:abc")
        dispatch(scheduler, 1, replica=f"replica-{number}")
        scheduler.finish(f"q{number}")
    assert len(scheduler._replicas) <= IDLE_REPLICAS_MAX + 1
    scheduler.check_integrity()


def test_a_replica_with_active_requests_is_never_forgotten() -> None:
    scheduler = qas()
    add(scheduler, "long:abc")
    dispatch(scheduler, 1, replica="busy")
    for number in range(2 * IDLE_REPLICAS_MAX):
        add(scheduler, f"q{number}:abc")
        dispatch(scheduler, 1, replica=f"replica-{number}")
        scheduler.finish(f"q{number}")
    assert scheduler.finish("long")


def test_inside_a_bucket_requests_leave_in_queue_order() -> None:
    scheduler = qas(q_cold=0)
    add(scheduler, "1:ax", "2:ay", "3:az")
    scheduler.add(ticket("0", "aw"), at_head=True)
    assert names(dispatch(scheduler, 4)[0]) == ["0", "1", "2", "3"]


def test_a_doubled_id_is_refused_while_queued_and_while_active() -> None:
    scheduler = qas()
    add(scheduler, "1:a")
    with pytest.raises(ValueError, match="'1'"):
        add(scheduler, "1:b")
    dispatch(scheduler, 1)
    with pytest.raises(ValueError, match="'1'"):
        add(scheduler, "1:b")
    assert scheduler.finish("1")
    add(scheduler, "1:b")
    scheduler.check_integrity()


def test_cancel_and_finish_say_whether_there_was_something() -> None:
    scheduler = qas()
    add(scheduler, "1:a")
    assert not scheduler.finish("1")
    assert scheduler.cancel("1")
    assert not scheduler.cancel("1")
    add(scheduler, "2:a")
    dispatch(scheduler, 1)
    assert not scheduler.cancel("2")
    assert scheduler.finish("2")
    assert not scheduler.finish("2")


def test_peek_changes_nothing() -> None:
    scheduler = qas()
    add(scheduler, "1:ab", "2:ab")
    opened = scheduler.open_round({"r": NoCache()})
    assert opened.peek("r") is opened.peek("r")
    assert opened.close() == {}
    assert [t.request_id for t in scheduler.waiting()] == ["1", "2"]
    assert scheduler.describe()["lanes"] == {}
    scheduler.check_integrity()


def test_take_refuses_all_but_the_last_offer() -> None:
    scheduler = qas()
    add(scheduler, "1:ab", "2:ab")
    opened = scheduler.open_round({"r": NoCache(), "s": NoCache()})
    pick = opened.peek("r")
    assert pick is not None
    with pytest.raises(ValueError, match="s was offered"):
        opened.take("s", pick)
    opened.take("r", pick)
    with pytest.raises(ValueError, match="1 is not"):
        opened.take("r", pick)


def test_an_offer_that_another_replica_took_is_void() -> None:
    scheduler = qas()
    add(scheduler, "1:ab", "2:ab")
    opened = scheduler.open_round({"r": NoCache(), "s": NoCache()})
    stale = opened.peek("s")
    take(opened, 1, "r")
    assert stale is not None
    with pytest.raises(ValueError, match="1 is not"):
        opened.take("s", stale)
    assert names(take(opened, 1, "s")) == ["2"]


def test_a_replica_outside_the_round_is_refused() -> None:
    opened = qas().open_round({"r": NoCache()})
    with pytest.raises(ValueError, match="'s'"):
        opened.peek("s")


def test_scores_are_frozen_while_a_round_is_open() -> None:
    scheduler = qas(q_cold=0)
    add(scheduler, "1:ab", "2:ac", "3:a")
    opened = scheduler.open_round({"r": NoCache()})
    scores = {pick.score for pick in take(opened, 3)}
    assert len(scores) == 1


def test_nothing_else_may_be_called_while_a_round_is_open() -> None:
    scheduler = qas()
    add(scheduler, "1:a")
    opened = scheduler.open_round({"r": NoCache()})
    for call in (
        lambda: add(scheduler, "2:a"),
        lambda: scheduler.cancel("1"),
        lambda: scheduler.finish("1"),
        lambda: scheduler.open_round({}),
    ):
        with pytest.raises(RuntimeError, match="round is open"):
            call()
    opened.close()
    for late in (opened.close, lambda: opened.peek("r")):
        with pytest.raises(RuntimeError, match="closed"):
            late()
    add(scheduler, "2:a")


def test_describe_is_for_people() -> None:
    scheduler = qas(q_cold=1, batch_max=2, beta_util=0.0)
    add(scheduler, "1:ab", "2:ac", "3:ad", "4:x")
    dispatch(scheduler, 2)
    seen = scheduler.describe(top=2)
    assert (seen["policy"], seen["queued"], seen["active"]) == ("qas", 2, 2)
    assert seen["segments"][0] == {
        "segment": b"a".hex(),
        "label": "doc a",
        "active": 2,
        "queued": 1,
        "next": 2,
        "priority": 2e6 + 2e5 + 1,
    }
    assert len(seen["segments"]) == 2
    assert [bucket["signature"] for bucket in seen["buckets"]] == [["doc a"], ["doc x"]]
    assert [bucket["size"] for bucket in seen["buckets"]] == [1, 1]
    assert seen["lanes"] == {"r": {"dispatched": 2, "cold": 1, "hot": 1, "active": 2}}


def test_segments_that_may_be_resident_keep_their_ranks() -> None:
    """A pair asked for again, in the other order, is written as before: its prefix is cached."""
    for memory, order in ((2048, (1, 0)), (0, (0, 1))):
        scheduler = qas(memory_requests=memory, batch_max=1, q_cold=0)
        for request in ("1:ab", "2:cd"):
            add(scheduler, request)
            dispatch(scheduler, 1)
            scheduler.finish(request[0])
        add(scheduler, "3:ba")
        (pick,), _ = dispatch(scheduler, 1)
        assert pick.order == order


def test_a_replica_that_left_is_forgotten() -> None:
    scheduler = qas()
    add(scheduler, "1:ab")
    dispatch(scheduler, 1)
    with pytest.raises(ValueError, match="active"):
        scheduler.forget("r")
    scheduler.finish("1")
    scheduler.forget("r")
    scheduler.forget("never seen")
    scheduler.check_integrity()
    assert scheduler.describe()["lanes"] == {}
    assert scheduler.describe()["segments"] == []
