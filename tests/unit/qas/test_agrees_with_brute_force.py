"""The incremental scheduler picks what equations (7)-(12), recomputed from scratch, pick.

Random lives of a scheduler (requests come, leave, are refused, finish; rounds over one to three
replicas) are lived twice: by the policy ``qas`` through the Scheduler protocol, and by the twin in
``brute_force.py``. Every single pick must be the same.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism_ray.model import NO_GAP, Atom, Pick, Segment, Skeleton, Ticket
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Match, Scheduler, Watching

from .brute_force import (
    Choice,
    Params,
    World,
    all_choices,
    count,
    first_number,
    fixed_batch,
    next_choice,
    still_there,
)

REPLICAS = ("r0", "r1", "r2")
ALPHABET = tuple(name.encode() for name in "abcdefg")


class EmptyCache:
    """A cache that never has anything."""

    def match(self, path: tuple[Atom, ...]) -> Match:
        return Match(0, 0)


@dataclass(frozen=True)
class Add:
    skeleton: Skeleton


@dataclass(frozen=True)
class Cancel:
    index: int


@dataclass(frozen=True)
class Finish:
    index: int


@dataclass(frozen=True)
class Start:
    """The prefill of a dispatched request ends."""

    index: int


@dataclass(frozen=True)
class Refuse:
    """A replica sends a dispatched request back: no longer active, it queues at the head."""

    index: int


@dataclass(frozen=True)
class Play:
    """One round: who is named in it, and which replica asks, in which sequence."""

    replicas: tuple[str, ...]
    asks: tuple[str, ...]


Operation = Add | Cancel | Start | Finish | Refuse | Play


@st.composite
def skeletons(draw: st.DrawFn) -> Skeleton:
    """Up to six slots over few segments, some repeated, in no run or in one of two mixed runs."""
    pieces = draw(
        st.lists(
            st.tuples(st.sampled_from(ALPHABET), st.sampled_from([0, 0, 0, 1, None])), max_size=6
        )
    )
    segments = tuple(Segment(name, 128, run=run) for name, run in pieces)
    return Skeleton(None, segments, (NO_GAP,) * len(segments), private_tokens=8)


@st.composite
def rounds(draw: st.DrawFn) -> Play:
    replicas = draw(st.lists(st.sampled_from(REPLICAS), min_size=1, max_size=3, unique=True))
    asks = draw(st.lists(st.sampled_from(replicas), max_size=12))
    return Play(tuple(replicas), tuple(asks))


INDEXES = st.integers(0, 20)
OPERATIONS = st.one_of(
    skeletons().map(Add),
    skeletons().map(Add),
    rounds(),
    INDEXES.map(Cancel),
    INDEXES.map(Start),
    INDEXES.map(Finish),
    INDEXES.map(Refuse),
)


@st.composite
def parameters(draw: st.DrawFn) -> Params:
    """Weights are small whole numbers (many ties) or the paper's, so that float sums are exact."""
    q_cold = draw(st.integers(0, 8))
    return Params(
        w_active=draw(st.sampled_from([1e6, 2.0, 1.0])),
        w_next=draw(st.sampled_from([1e5, 3.0, 1.0, 0.0])),
        w_global=draw(st.sampled_from([1.0, 2.0])),
        f_front=draw(st.integers(0, 5)),
        kappa=draw(st.integers(1, 3)),
        alpha_size=draw(st.sampled_from([1.0, 4.0])),
        beta_util=draw(st.sampled_from([0.5, 1.0, 0.0])),
        q_cold=q_cold,
        batch_max=draw(st.integers(max(1, q_cold), q_cold + 6)),
        priority=draw(st.sampled_from(["weighted", "lexicographic"])),
        bucket_segments=draw(st.sampled_from(["union", "signature"])),
        active=draw(st.sampled_from(["dispatched", "running"])),
        batch=draw(st.sampled_from(["credit", "fixed"])),
        lanes=draw(st.sampled_from(["rate", "rate", "per_round"])),
        window_max=draw(st.one_of(st.integers(1, 6), st.just(1024))),
        memory_requests=draw(st.sampled_from([0, 6, 2048])),
    )


class Twins:
    """The product and the brute-force world, fed with the same operations."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.world = World(memory=max(params.batch_max, params.memory_requests))
        self.scheduler: Scheduler = make_scheduler("qas", dataclasses.asdict(params))
        self.batches: dict[str, tuple[Choice, ...]] = {}
        self.born = 0

    def apply(self, operation: Operation) -> None:
        match operation:
            case Add(skeleton):
                self.born += 1
                self.add(Ticket(f"q{self.born}", skeleton, arrival_s=float(self.born)))
            case Cancel(index) if self.world.queue:
                name = self.world.queue[index % len(self.world.queue)].request_id
                assert self.scheduler.cancel(name)
                self.world = self.world.cancel(name)
            case Start(index) if self.world.running:
                name = self.world.running[index % len(self.world.running)].request_id
                assert isinstance(self.scheduler, Watching)
                self.scheduler.runs(name)
                self.world = self.world.start(name)
            case Finish(index) if self.world.running:
                self.finish(self.world.running[index % len(self.world.running)])
            case Refuse(index) if self.world.running:
                ticket = self.world.running[index % len(self.world.running)]
                self.finish(ticket)
                self.add(ticket, at_head=True)
            case Play():
                self.play(operation)
        self.check()

    def add(self, ticket: Ticket, at_head: bool = False) -> None:
        self.scheduler.add(ticket, at_head=at_head)
        self.world = self.world.add(ticket, at_head)

    def finish(self, ticket: Ticket) -> None:
        assert self.scheduler.finish(ticket.request_id)
        self.world = self.world.finish(ticket.request_id)

    def play(self, play: Play) -> None:
        """Ask in the given sequence; within the round the twin's world stands still."""
        start = self.world
        taken: set[str] = set()
        first = {name: first_number(start, self.params, name) for name in play.replicas}
        numbers = first.copy()
        opened = self.scheduler.open_round({name: EmptyCache() for name in play.replicas})
        for replica in play.asks:
            batch = self.batch(start, replica, taken, numbers[replica])
            expected = batch[0] if batch else None
            pick = opened.peek(replica)
            assert opened.peek(replica) == pick, "peek changed something"
            self.compare(pick, expected)
            if pick is not None:
                opened.take(replica, pick)
                taken.add(pick.ticket.request_id)
                numbers[replica] += 1
                self.world = self.world.dispatch(pick.ticket, replica)
                self.batches[replica] = batch[1:]
        given = {r for r in play.replicas if numbers[r] > first[r]}
        assert set(opened.close()) == given
        for replica in given:
            self.batches[replica] = without_taken(self.batches[replica], taken)

    def batch(self, start: World, replica: str, taken: set[str], number: int) -> tuple[Choice, ...]:
        """The choices that go next: one at a time, or a fixed batch or what is left of it."""
        if self.params.batch == "credit":
            choice = next_choice(start, self.params, taken, number)
            return () if choice is None else (choice,)
        left = still_there(start, self.params, self.batches.get(replica, ()), taken)
        return left or fixed_batch(start, self.params, taken, number)

    def compare(self, pick: Pick | None, expected: Choice | None) -> None:
        assert (pick is None) == (expected is None), f"picked {pick}, expected {expected}"
        if pick is None or expected is None:
            return
        got = (pick.ticket.request_id, pick.order, pick.lane, pick.signature)
        assert got == (expected.request_id, expected.order, expected.lane, expected.signature)
        assert pick.score == pytest.approx(expected.score, rel=1e-12)

    def check(self) -> None:
        self.scheduler.check_integrity()
        assert [t.request_id for t in self.scheduler.waiting()] == [
            t.request_id for t in self.world.queue
        ]
        assert len(self.scheduler) == len(self.world.queue)
        expected = {
            segment.hex(): (
                count(segment, self.world.counted_active(self.params)),
                count(segment, self.world.counted_queued(self.params)),
            )
            for segment in self.world.seen
        }
        assert self.counters() == {segment: n for segment, n in expected.items() if any(n)}

    def counters(self) -> dict[str, tuple[int, int]]:
        """A and G by segment, as the product tells people; segments only in past batches left out."""
        rows = self.scheduler.describe(top=2 * len(ALPHABET))["segments"]
        counted = {row["segment"]: (row["active"], row["queued"]) for row in rows}
        return {segment: both for segment, both in counted.items() if any(both)}


def without_taken(batch: tuple[Choice, ...], taken: set[str]) -> tuple[Choice, ...]:
    return tuple(choice for choice in batch if choice.request_id not in taken)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parameters(), st.lists(OPERATIONS, min_size=15, max_size=60))
def test_every_pick_of_a_random_life_is_the_one_the_equations_give(
    params: Params, operations: list[Operation]
) -> None:
    twins = Twins(params)
    for operation in operations:
        twins.apply(operation)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parameters(), st.lists(skeletons(), min_size=8, max_size=24), st.integers(0, 12))
def test_one_replica_draining_the_window_follows_the_whole_predicted_sequence(
    params: Params, requests: list[Skeleton], active: int
) -> None:
    """Deep queues: some requests are dispatched first, so that A is not zero, then all the rest."""
    twins = Twins(params)
    for skeleton in requests:
        twins.apply(Add(skeleton))
    twins.apply(Play(("r1",), ("r1",) * min(active, len(requests))))
    expected = all_choices(twins.world, params, "r0")
    opened = twins.scheduler.open_round({"r0": EmptyCache()})
    for choice in [*expected, None]:
        pick = opened.peek("r0")
        twins.compare(pick, choice)
        if pick is not None:
            opened.take("r0", pick)
    opened.close()
    twins.scheduler.check_integrity()
