"""What a choice says of itself is about the replica that was chosen, and what it was compared with."""

from __future__ import annotations

from itertools import count

from prism_ray.model import NO_GAP, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement import Choice, Homing, ReplicaLoad, make_placement
from prism_ray.placement.e2 import E2
from prism_ray.placement.e2_books import E2Book

ROOM = ReplicaCapacity(pool_tokens=100_000, max_running=64, prefill_ahead_tokens=8_192)


class Desk:
    """E2 over ``a``, ``b`` and ``c`` with 1,000 tokens/s."""

    def __init__(self, **params: object) -> None:
        self.e2 = E2({"prefill_tokens_per_s": 1_000, "replicate": False, **params})
        self._numbers = count()
        for replica in "abc":
            self.e2.join(replica, ROOM, None, 0.0)

    def book(self, replica: str) -> E2Book:
        return next(book for book in self.e2.rule.books if book.replica == replica)

    def place(self, document: bytes, private: int = 100) -> tuple[Ticket, Choice]:
        skeleton = Skeleton(None, (Segment(document, 900),), (NO_GAP,), private)
        ticket = Ticket(f"q{next(self._numbers)}", skeleton, 0.0)
        return ticket, self.e2.place(ticket, skeleton.path((0,)), 0.0)

    def serve(self, document: bytes) -> str:
        ticket, choice = self.place(document)
        self.e2.sent(ticket.request_id, ticket.skeleton.path((0,)), 0, 0.0)
        self.e2.prefilled(ticket.request_id, 0.0)
        self.e2.released(ticket.request_id, 1, 0.0)
        return choice.replica


class TestE2:
    def test_exploring_names_the_runner_up_with_its_cost(self) -> None:
        desk = Desk(equal_cost=1.0)
        for replica, load_s in (("a", 30.0), ("b", 20.0), ("c", 10.0)):
            desk.book(replica).load_s = load_s
            desk.book(replica).joined_s = -1_000.0
        _, choice = desk.place(b"new")
        assert choice.replica == "c"
        assert choice.numbers["runner_up"] == "b"
        assert (choice.numbers["cost_s"], choice.numbers["runner_up_cost_s"]) == (11.0, 21.0)

    def test_the_runner_up_of_equal_ones_is_the_next_to_be_done(self) -> None:
        desk = Desk(equal_cost=1e9, spill=False)
        for replica, backlog_s in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
            desk.book(replica).backlog_s = backlog_s
        _, choice = desk.place(b"new")
        assert (choice.replica, choice.numbers["runner_up"]) == ("b", "c")
        assert (choice.numbers["done_s"], choice.numbers["runner_up_done_s"]) == (2.0, 3.0)

    def test_a_replica_that_was_nearly_chosen_is_named_where_another_is_free_sooner(self) -> None:
        desk = Desk(equal_cost=1.0)
        for replica, load_s, backlog_s in (("a", 1.0, 50.0), ("b", 9.0, 5.0), ("c", 9.0, 7.0)):
            book = desk.book(replica)
            book.load_s, book.backlog_s, book.joined_s = load_s, backlog_s, -1_000.0
        _, choice = desk.place(b"new")
        assert (choice.replica, choice.numbers["instead_of"]) == ("b", "a")
        assert (choice.numbers["wait_s"], choice.numbers["instead_wait_s"]) == (5.0, 50.0)
        assert "runner_up" not in choice.numbers

    def test_exploiting_compares_the_holders(self) -> None:
        desk = Desk(spill=False, rebalance=False)
        home = desk.serve(b"doc")
        other = next(r for r in "abc" if r != home)
        desk.e2.forest.use(
            Skeleton(None, (Segment(b"doc", 900),), (NO_GAP,), 1).path((0,)), other, 0.0
        )
        _, choice = desk.place(b"doc")
        assert choice.kind == "exploit"
        assert {choice.replica, choice.numbers["runner_up"]} == {home, other}

    def test_a_spill_tells_of_where_it_goes_and_of_what_it_leaves(self) -> None:
        desk = Desk(rebalance=False, spill_ratio=0)
        home = desk.serve(b"doc")
        desk.book(home).backlog_s = 50.0
        _, choice = desk.place(b"doc")
        assert choice.kind == "spill"
        assert choice.numbers == {
            "holders": 1,
            "instead_of": home,
            "instead_cached_tokens": 900,
            "instead_load_s": desk.e2.terms.load_s(desk.book(home), 0.0),
            "instead_wait_s": 50.0,
            "cached_tokens": 0,
            "missed_tokens": 1_000,
            "load_s": 0.0,
            "wait_s": 0.0,
        }

    def test_so_does_a_rebalanced_one(self) -> None:
        desk = Desk(busy_share=0.001, spill=False)
        home = desk.serve(b"doc")
        desk.book(home).load_s = 50.0
        _, choice = desk.place(b"doc")
        assert choice.kind == "rebalance"
        assert (choice.numbers["cached_tokens"], choice.numbers["instead_cached_tokens"]) == (
            0,
            900,
        )
        assert choice.numbers["load_s"] == 0.0 < choice.numbers["instead_load_s"]  # type: ignore[operator]

    def test_a_waiting_request_that_moves_says_the_same(self) -> None:
        desk = Desk(rebalance=False)
        ticket, first = desk.place(b"doc")
        desk.book(first.replica).backlog_s += 5.0
        ready = [r for r in "abc" if r != first.replica]
        moved = desk.e2.move(ticket, ticket.skeleton.path((0,)), ready, 0.0)
        assert moved is not None
        assert moved.numbers["instead_of"] == first.replica
        assert (moved.numbers["missed_tokens"], moved.numbers["instead_cached_tokens"]) == (
            1_000,
            0,
        )
        assert (moved.numbers["wait_s"], moved.numbers["instead_wait_s"]) == (0.0, 5.0)


class TestTurns:
    LOADS = (ReplicaLoad("a", 10, 1, 7), ReplicaLoad("b", 5, 2, 8), ReplicaLoad("c", 5, 2, 9))

    def test_round_robin_counts_its_turns(self) -> None:
        placement = make_placement("round-robin")
        assert not isinstance(placement, Homing)
        first = placement.choose(self.LOADS)
        assert first == Choice("a", "turn", {"turn": 1, "ready": 3})
        placement.took("a")
        second = placement.choose(self.LOADS)
        assert second == Choice("b", "turn", {"turn": 2, "ready": 3, "after": "a"})

    def test_least_loaded_names_the_runner_up_and_its_loads(self) -> None:
        placement = make_placement("least-loaded")
        assert not isinstance(placement, Homing)
        choice = placement.choose(self.LOADS)
        assert str(choice) == (
            "least-loaded to b (load_tokens 5, running 2, dispatched 8, runner_up c, "
            "runner_up_load_tokens 5, runner_up_running 2, runner_up_dispatched 9)"
        )
        assert placement.choose(self.LOADS[:1]).numbers == {
            "load_tokens": 10,
            "running": 1,
            "dispatched": 7,
        }


def test_consistent_hash_says_what_it_hashed() -> None:
    placement = make_placement("consistent-hash", {"tokens": 1_000})
    assert isinstance(placement, Homing)
    placement.join("r", ROOM, None, 0.0)
    segments = tuple(Segment(b"doc %d" % n, 600) for n in range(5))
    skeleton = Skeleton(None, segments, (NO_GAP,) * 5, 10)
    choice = placement.place(Ticket("q", skeleton, 0.0), skeleton.path((0, 1, 2, 3, 4)), 0.0)
    assert choice.numbers == {"key_atoms": 2, "key_tokens": 1_200, "passed_over": 0}
