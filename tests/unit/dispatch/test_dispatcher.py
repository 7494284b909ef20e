from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prism_ray.dispatch import Dispatch, Dispatcher, Place
from prism_ray.model import (
    NO_GAP,
    Completion,
    InFlight,
    Outcome,
    ReplicaCapacity,
    ReplicaSnapshot,
    Segment,
    Skeleton,
    Ticket,
)
from prism_ray.placement import Path, make_placement
from prism_ray.placement.e2 import E2
from prism_ray.policies import make_scheduler

CAPACITY = ReplicaCapacity(pool_tokens=10_000, max_running=8, prefill_ahead_tokens=1_000)


def ticket(
    name: str, documents: str = "abc", tokens: int = 100, private: int = 50, **more: object
) -> Ticket:
    segments = tuple(Segment(d.encode(), tokens, run=0) for d in documents)
    skeleton = Skeleton(Segment(b"sys", 20), segments, (NO_GAP,) * len(segments), private)
    return Ticket(request_id=name, skeleton=skeleton, arrival_s=0.0, **more)  # type: ignore[arg-type]


def dispatcher(policy: str = "fcfs", placement: str = "single") -> Dispatcher:
    return Dispatcher(make_scheduler(policy, {}), make_placement(placement), epoch="e1")


class Paced(E2):
    """E2 with a bound that the test sets."""

    most: int | None = None

    @property
    def slots(self) -> int | None:
        return self.most


def names(dispatches: list[Dispatch]) -> list[str]:
    return [entry.request_id for d in dispatches for entry in d.plan.entries]


def snapshot(*in_flight: InFlight, replica: str = "r1", incarnation: str = "i1") -> ReplicaSnapshot:
    return ReplicaSnapshot(replica, incarnation, 1, 0, 0, 0, 0, 0, 0, 0, 0.0, in_flight)


def done(name: str, attempt: int = 0) -> Completion:
    return Completion(name, attempt, Outcome.FINISHED)


class TestCredit:
    def test_a_request_is_admitted_while_credit_is_above_zero_and_may_overdraw(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        for number in range(6):  # 370 uncached tokens each: distinct documents
            d.submit(ticket(str(number), documents=chr(100 + number), tokens=300))
        assert names(d.round(1.0)) == ["0", "1", "2"]
        assert d.seats["r1"].credit_tokens == 0

    def test_credit_returns_when_the_prefill_has_ended(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        for number in range(6):
            d.submit(ticket(str(number), documents=chr(100 + number), tokens=600))
        assert names(d.round(1.0)) == ["0", "1"]
        assert d.round(2.0) == []
        assert d.prefill_ended("r1", "0", 0)
        assert not d.prefill_ended("r1", "0", 0)
        assert names(d.round(3.0)) == ["2"]
        d.check_integrity()

    def test_a_policy_that_asks_for_it_hears_when_a_request_runs(self) -> None:
        scheduler = make_scheduler("qas", {"active": "running"})
        d = Dispatcher(scheduler, make_placement("single"), epoch="e1")
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("a"))
        d.round(1.0)
        assert [row["active"] for row in scheduler.describe()["segments"]] == [0, 0, 0]
        assert d.prefill_ended("r1", "a", 0)
        assert [row["active"] for row in scheduler.describe()["segments"]] == [1, 1, 1]
        d.check_integrity()

    def test_what_the_replica_is_believed_to_have_cached_costs_no_credit(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("first"))
        d.round(1.0)
        d.prefill_ended("r1", "first", 0)
        d.submit(ticket("second"))
        (dispatch,) = d.round(2.0)
        assert dispatch.plan.entries[0].uncached_tokens == 50
        assert dispatch.decisions[0].predicted_cached_tokens == 320

    def test_running_requests_are_limited(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", ReplicaCapacity(10_000, max_running=2, prefill_ahead_tokens=9_000))
        for number in range(4):
            d.submit(ticket(str(number)))
        assert names(d.round(1.0)) == ["0", "1"]
        d.prefill_ended("r1", "0", 0)
        assert d.round(2.0) == []
        d.completed("r1", done("0"))
        assert names(d.round(3.0)) == ["2"]

    def test_a_placement_that_paces_bounds_what_is_at_a_replica_and_lets_go_again(self) -> None:
        placement = Paced()
        d = Dispatcher(make_scheduler("fcfs", {}), placement, epoch="e1")
        d.join("r1", "i1", ReplicaCapacity(10_000, max_running=4, prefill_ahead_tokens=9_000))
        for number in range(10):
            d.submit(ticket(str(number)))
        assert names(d.round(1.0)) == ["0", "1", "2", "3"]
        placement.most = 2
        for name in "012":
            assert d.next_round_s(2.0) is None
            d.completed("r1", done(name))
        assert names(d.round(2.0)) == ["4"]
        d.join("r2", "i1", ReplicaCapacity(10_000, max_running=4, prefill_ahead_tokens=9_000))
        assert [d.seats[name].slots for name in ("r1", "r2")] == [2, 2]
        placement.most = 100
        d.completed("r1", done("3"))
        assert [d.seats[name].slots for name in ("r1", "r2")] == [4, 4]
        placement.most = None
        d.completed("r1", done("4"))
        d.check_integrity()
        assert [d.seats[name].slots for name in ("r1", "r2")] == [4, 4]

    def test_the_pool_must_hold_all_running_requests_at_their_output_limits(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", ReplicaCapacity(1_000, max_running=8, prefill_ahead_tokens=9_000))
        for number in range(3):  # shared 320, own 50 + 250
            d.submit(ticket(str(number), max_new_tokens=250))
        assert names(d.round(1.0)) == ["0", "1"]
        d.completed("r1", done("0"))
        assert names(d.round(2.0)) == ["2"]

    def test_a_request_alone_goes_even_if_it_fills_the_pool(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", ReplicaCapacity(300, max_running=8, prefill_ahead_tokens=100))
        d.submit(ticket("big"))
        assert names(d.round(1.0)) == ["big"]


class TestRounds:
    def test_a_round_is_due_at_once_while_an_open_replica_has_no_prefill_to_do(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        assert d.next_round_s(5.0) is None
        d.submit(ticket("a"))
        assert d.next_round_s(5.0) == 5.0

    def test_otherwise_rounds_keep_the_interval(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("a"))
        d.round(5.0)
        d.submit(ticket("b"))
        assert d.next_round_s(5.001) == pytest.approx(5.020)
        d.prefill_ended("r1", "a", 0)
        assert d.next_round_s(5.001) == 5.001

    def test_plans_of_a_replica_are_numbered_and_decisions_match_their_entries(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        for expected_version in (1, 2):
            d.submit(ticket(f"t{expected_version}"))
            (dispatch,) = d.round(float(expected_version))
            assert dispatch.plan.version == expected_version
            assert [x.request_id for x in dispatch.decisions] == names([dispatch])
            assert dispatch.decisions[0].plan_version == expected_version

    def test_round_robin_and_least_loaded_spread_over_replicas(self) -> None:
        for placement in ("round-robin", "least-loaded"):
            d = dispatcher(placement=placement)
            d.join("r1", "i1", CAPACITY)
            d.join("r2", "i2", CAPACITY)
            for number in range(4):
                d.submit(ticket(str(number), documents=chr(100 + number)))
            got = {x.plan.replica: names([x]) for x in d.round(1.0)}
            assert got == {"r1": ["0", "2"], "r2": ["1", "3"]}

    def test_round_robin_takes_turns_also_when_requests_come_one_at_a_time(self) -> None:
        d = dispatcher(placement="round-robin")
        d.join("r1", "i1", CAPACITY)
        d.join("r2", "i2", CAPACITY)
        got = []
        for number in range(4):
            d.submit(ticket(str(number)))
            (dispatch,) = d.round(float(number))
            got.append(dispatch.plan.replica)
            d.completed(dispatch.plan.replica, done(str(number)))
        assert got == ["r1", "r2", "r1", "r2"]

    def test_tickets_past_their_deadline_leave_every_counter(self) -> None:
        d = dispatcher("qas")
        d.submit(ticket("late", deadline_s=2.0))
        d.submit(ticket("fine", deadline_s=9.0))
        assert [t.request_id for t in d.expired(2.0)] == ["late"]
        assert d.place_of("late") is Place.UNKNOWN
        d.check_integrity()


class TestAttempts:
    def test_an_attempt_that_is_not_new_is_refused(self) -> None:
        d = dispatcher()
        d.submit(ticket("a", attempt=1))
        with pytest.raises(ValueError, match="not new"):
            d.submit(ticket("a", attempt=1))

    def test_a_newer_attempt_replaces_the_sent_one(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("a"))
        d.round(1.0)
        d.submit(ticket("a", attempt=1), at_head=True)
        assert d.seats["r1"].sent == {}
        assert not d.completed("r1", done("a", attempt=0))
        assert names(d.round(2.0)) == ["a"]
        assert d.completed("r1", done("a", attempt=1))
        d.check_integrity()

    def test_a_refused_ticket_goes_back_before_all_others(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("a"))
        d.round(1.0)
        d.submit(ticket("b"))
        back = d.refused("r1", "a", 0)
        assert back is not None
        d.submit(ticket("a", attempt=1), at_head=True)
        assert names(d.round(2.0)) == ["a", "b"]


class TestReplicas:
    def test_a_replica_that_leaves_hands_back_what_was_sent_to_it(self) -> None:
        d = dispatcher("qas")
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("a"))
        d.round(1.0)
        assert [t.request_id for t in d.leave("r1")] == ["a"]
        assert d.sent_count == 0
        d.check_integrity()

    def test_what_waits_at_a_draining_replica_waits_for_the_others(self) -> None:
        d = dispatcher("qas", "e2")
        d.join("r1", "i1", CAPACITY)
        for name in "abcdefghi":
            d.submit(ticket(name, "xyz"))
        d.round(1.0)
        waiting = sum(t.skeleton.prompt_tokens for t in d.scheduler.waiting())
        assert d.queued_tokens("r1") == waiting > 0
        d.seats["r1"].draining = True
        assert d.queued_tokens("r1") == 0
        for name, share in (("r2", 1), ("r3", 2)):
            d.join(name, "i1", CAPACITY)
            assert d.queued_tokens(name) == waiting // share
        d.check_integrity()

    def test_a_new_incarnation_starts_with_empty_books(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("a"))
        d.round(1.0)
        assert [t.request_id for t in d.join("r1", "i2", CAPACITY)] == ["a"]
        assert d.seats["r1"].credit_tokens == CAPACITY.prefill_ahead_tokens

    def test_a_snapshot_ends_what_the_replica_no_longer_has(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        for name in "ab":
            d.submit(ticket(name))
        d.round(1.0)
        gone = d.snapshot(snapshot(InFlight("b", 0, 50, True)), plan_version=1)
        assert [t.request_id for t in gone] == ["a"]
        assert list(d.seats["r1"].sent) == ["b"]

    def test_a_snapshot_older_than_the_plan_ends_nothing(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("a"))
        d.round(1.0)
        assert d.snapshot(snapshot(), plan_version=0) == []
        assert list(d.seats["r1"].sent) == ["a"]

    def test_what_another_qas_sent_uses_up_credit_until_it_is_gone(self) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        d.snapshot(snapshot(InFlight("foreign", 0, 1_000, False)), plan_version=0)
        d.submit(ticket("a"))
        assert d.next_round_s(1.0) is None
        assert d.round(1.0) == []
        d.snapshot(snapshot(), plan_version=0)
        assert names(d.round(2.0)) == ["a"]

    def test_an_older_attempt_that_still_runs_where_a_newer_one_was_sent_uses_up_credit(
        self,
    ) -> None:
        d = dispatcher()
        d.join("r1", "i1", CAPACITY)
        d.submit(ticket("a"))
        d.round(1.0)
        d.submit(ticket("a", attempt=1))
        d.round(2.0)
        d.snapshot(snapshot(InFlight("a", 0, 370, False), InFlight("a", 1, 50, False)), 2)
        assert (d.seats["r1"].foreign_requests, d.seats["r1"].foreign_tokens) == (1, 370)
        d.snapshot(snapshot(InFlight("a", 1, 50, False)), 2)
        assert d.seats["r1"].foreign_requests == 0

    def test_a_snapshot_of_a_dead_incarnation_is_ignored(self) -> None:
        d = dispatcher()
        d.join("r1", "i2", CAPACITY)
        d.snapshot(snapshot(InFlight("x", 0, 500, False), incarnation="i1"), plan_version=0)
        assert d.seats["r1"].foreign_tokens == 0


class Books(RuleBasedStateMachine):
    """Whatever happens, in whatever order: each ticket leaves once and every book balances."""

    policy = "qas"
    placement = "least-loaded"
    capacity = CAPACITY

    def __init__(self) -> None:
        super().__init__()
        self.d = dispatcher(self.policy, self.placement)
        self.names = (f"q{n}" for n in count())
        self.now = 0.0
        self.entered = 0
        self.left = 0

    @rule(documents=st.text("abcdef", min_size=0, max_size=4), at_head=st.booleans())
    def submit(self, documents: str, at_head: bool) -> None:
        documents = "".join(dict.fromkeys(documents))
        self.d.submit(ticket(next(self.names), documents, max_new_tokens=9), at_head=at_head)
        self.entered += 1

    @rule(replica=st.sampled_from(["r1", "r2"]), incarnation=st.sampled_from(["i1", "i2"]))
    def join(self, replica: str, incarnation: str) -> None:
        self.left += len(self.d.join(replica, incarnation, self.capacity))

    @rule(replica=st.sampled_from(["r1", "r2"]))
    def leave(self, replica: str) -> None:
        self.left += len(self.d.leave(replica))

    @rule()
    def run_round(self) -> None:
        self.now += 0.02
        waiting = len(self.d)
        assert len(names(self.d.round(self.now))) == waiting - len(self.d)

    @precondition(lambda self: self.d.sent_count)
    @rule(data=st.data(), how=st.sampled_from(["prefill", "complete", "cancel", "refuse", "lost"]))
    def something_sent_moves_on(self, data: st.DataObject, how: str) -> None:
        replica, name = data.draw(
            st.sampled_from([(r, n) for r, s in self.d.seats.items() for n in s.sent])
        )
        if how == "prefill":
            self.d.prefill_ended(replica, name, 0)
            return
        self.left += 1
        if how == "complete":
            assert self.d.completed(replica, done(name))
        elif how == "cancel":
            assert self.d.cancel(name) is Place.SENT
        elif how == "refuse":
            assert self.d.refused(replica, name, 0) is not None
        else:
            seat = self.d.seats[replica]
            held = [InFlight(n, 0, 1, True) for n in seat.sent if n != name]
            lost = self.d.snapshot(
                snapshot(*held, replica=replica, incarnation=seat.incarnation), seat.plan_version
            )
            assert [t.request_id for t in lost] == [name]

    @precondition(lambda self: len(self.d))
    @rule(data=st.data())
    def a_waiting_client_leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([t.request_id for t in self.d.scheduler.waiting()]))
        assert self.d.cancel(name) is Place.WAITING
        self.left += 1

    @invariant()
    def books_balance(self) -> None:
        self.d.check_integrity()
        assert self.entered == self.left + len(self.d) + self.d.sent_count

    @precondition(lambda self: self.d.seats)
    @rule(data=st.data(), draining=st.booleans())
    def drain(self, data: st.DataObject, draining: bool) -> None:
        self.d.seats[data.draw(st.sampled_from(sorted(self.d.seats)))].draining = draining

    @rule(replica=st.sampled_from(["r1", "r2"]))
    def flush(self, replica: str) -> None:
        self.d.flushed(replica)

    @rule(seconds=st.sampled_from([1.0, 100.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds


class FcfsBooks(Books):
    policy = "fcfs"


class E2Books(Books):
    placement = "e2"


class E2PlusBooks(Books):
    placement = "e2+"


class Rewriting(E2):
    """E2 whose requests are all sent in another order than they were placed with."""

    def sent(self, request_id: str, path: Path, cached_tokens: int, now_s: float) -> None:
        super().sent(request_id, path[::-1], cached_tokens, now_s)


class RewritingE2Books(Books):
    """One request at a time and steps beyond E2's window: many are rewritten when their use expired."""

    policy = "fcfs"
    capacity = ReplicaCapacity(pool_tokens=10_000, max_running=1, prefill_ahead_tokens=1_000)

    def __init__(self) -> None:
        super().__init__()
        self.d = Dispatcher(make_scheduler(self.policy, {}), Rewriting(), epoch="e1")
        self.d.join("r1", "i1", self.capacity)

    @rule()
    def the_next_is_sent_after_the_window(self) -> None:
        self.run_round()
        self.now += 200.0
        self.submit("z", at_head=False)
        self.run_round()
        for replica, seat in self.d.seats.items():
            for name in list(seat.sent):
                self.left += self.d.completed(replica, done(name))
        self.run_round()


class LpmCacheAwareBooks(Books):
    policy = "lpm"
    placement = "cache-aware"


class AffinityBooks(Books):
    placement = "prefix-affinity"


class HashBooks(Books):
    policy = "fcfs"
    placement = "consistent-hash"


TestBooks = Books.TestCase
TestFcfsBooks = FcfsBooks.TestCase
TestE2Books = E2Books.TestCase
TestRewritingE2Books = RewritingE2Books.TestCase
TestE2PlusBooks = E2PlusBooks.TestCase
TestLpmCacheAwareBooks = LpmCacheAwareBooks.TestCase
TestAffinityBooks = AffinityBooks.TestCase
TestHashBooks = HashBooks.TestCase
for machine in (TestBooks, TestFcfsBooks, TestE2Books, TestRewritingE2Books):
    machine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
for machine in (TestE2PlusBooks, TestLpmCacheAwareBooks, TestAffinityBooks, TestHashBooks):
    machine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
