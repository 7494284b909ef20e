"""E2: exploits and explores as Preble says, and never loses count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.model import ReplicaCapacity, Skeleton, Ticket

from .e2_desk import ROOM, Desk, Truth


class TestExploitAndExplore:
    def test_a_prompt_that_is_mostly_cached_goes_where_it_is_cached(self) -> None:
        desk = Desk()
        home = desk.serve("doc*900")
        _, choice = desk.place("doc*900", private=800)
        assert (choice.replica, choice.kind) == (home, "exploit")
        assert choice.numbers["cached_tokens"] == 900

    def test_cached_tokens_decide_not_the_share_of_a_short_prompt(self) -> None:
        """A small match is no reason to go anywhere: what is missing outweighs it."""
        desk = Desk()
        home = desk.serve("head*100")
        _, choice = desk.place("head*100", "tail*100")
        assert (choice.kind, choice.replica) != ("exploit", home)
        assert choice.kind == "explore"

    def test_exploring_goes_by_load_never_by_tree_size(self) -> None:
        desk = Desk()
        busy = desk.serve("long*5000")
        other = desk.serve("short*100")
        assert other != busy
        assert desk.serve("new*100") == other, "the smaller load, though its tree is larger soon"

    def test_load_counts_from_the_choice_on_not_from_the_answer(self) -> None:
        desk = Desk("abcd")
        homes = [desk.place(f"doc{n}*1000")[1].replica for n in range(8)]
        assert sorted(homes) == sorted("abcd" * 2)

    def test_equal_replicas_share_quiet_moments(self) -> None:
        desk = Desk("abc")
        homes = []
        for n in range(6):
            homes.append(desk.serve(f"doc{n}*10"))
            desk.now += 1_000.0
        assert sorted(homes) == sorted("abc" * 2)

    def test_names_come_back_whatever_replicas_are_called(self) -> None:
        """Preble's public code returned an argmin's index as a GPU's id."""
        desk = Desk(["replica-10", "replica-9", "z"])
        assert {desk.place(f"d{n}*99")[1].replica for n in range(3)} == {
            "replica-10",
            "replica-9",
            "z",
        }

    def test_evicting_what_others_use_costs(self) -> None:
        small = ReplicaCapacity(pool_tokens=1_000, max_running=64, prefill_ahead_tokens=8_192)
        desk = Desk([], rebalance=False, replicate=False)
        for replica in "ab":
            desk.e2.join(replica, small, None, 0.0)
        first = desk.serve("hot*900")
        for _ in range(9):
            assert desk.serve("hot*900") == first
        book = desk.e2._books.by_name[first]
        assert desk.e2.terms.evict_s(book, 500) == pytest.approx(0.9, rel=0.01)  # type: ignore[arg-type]
        assert desk.e2.terms.evict_s(book, 50) == 0.0  # type: ignore[arg-type]

    def test_with_no_replica_there_is_no_home(self) -> None:
        with pytest.raises(ValueError, match="no replica"):
            Desk([]).place("doc*1")


class TestNewReplicas:
    def busy(self) -> Desk:
        desk = Desk("ab")
        for number in range(150):
            desk.serve(f"d{number}*10")
            desk.now += 0.1
        return desk

    def test_one_that_joins_others_at_work_gets_a_small_share_first(self) -> None:
        desk = self.busy()
        desk.e2.join("c", ROOM, None, desk.now)
        homes = [desk.place(f"n{n}*10")[1] for n in range(200)]
        new = [choice for choice in homes if choice.replica == "c"]
        assert len(new) == 10
        assert {choice.kind for choice in new} == {"new-replica"}

    def test_after_its_first_requests_it_is_one_of_them(self) -> None:
        desk = self.busy()
        desk.e2.join("c", ROOM, None, desk.now)
        for number in range(1_100):
            desk.serve(f"n{number}*10")
        assert not desk.e2.describe()["replicas"][2]["new"]

    def test_replicas_that_start_together_are_all_old(self) -> None:
        desk = Desk("abc")
        assert {desk.serve(f"d{n}*10") for n in range(3)} == set("abc")


class TestTruth:
    def test_a_prefix_that_the_engine_lost_is_not_exploited(self) -> None:
        desk = Desk([])
        gone, kept = Truth(0), Truth(10**6)
        desk.e2.join("a", ROOM, gone, 0.0)
        desk.e2.join("b", ROOM, kept, 0.0)
        while desk.serve("doc*900") != "a":
            desk.now += 1_000
            desk.e2.flushed("b")
        _, choice = desk.place("doc*900")
        assert choice.kind == "explore"
        desk.e2.check_integrity()

    def test_what_waits_to_be_sent_there_is_believed(self) -> None:
        desk = Desk([])
        for replica in "ab":
            desk.e2.join(replica, ROOM, Truth(0), 0.0)
        _, first = desk.place("doc*900")
        _, second = desk.place("doc*900")
        assert (second.kind, second.replica) == ("exploit", first.replica)

    def test_a_restarted_replica_holds_nothing(self) -> None:
        desk = Desk()
        home = desk.serve("doc*900")
        desk.e2.leave(home)
        desk.e2.join(home, ROOM, None, 1.0)
        assert desk.place("doc*900")[1].kind != "exploit"

    def test_a_draining_replica_gets_nothing(self) -> None:
        desk = Desk()
        home = desk.serve("doc*900")
        desk.e2.drain(home, True)
        assert {desk.serve("doc*900") for _ in range(5)} == {"b" if home == "a" else "a"}


class TestBooks:
    @given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.booleans()), max_size=40))
    @settings(deadline=None)
    def test_everything_returns_to_zero(self, steps: list[tuple[int, int, bool]]) -> None:
        """Placed, sent, prefilled, finished, refused or cancelled: all loads and counts come back."""
        desk = Desk("abc")
        alive: list[str] = []
        for document, life, finished in steps:
            name, _ = desk.place(f"d{document}*300", private=document * 100)
            alive.append(name)
            if life > 0:
                desk.send(name)
            if life > 1:
                desk.e2.prefilled(name, desk.now)
            if life > 2:
                desk.e2.released(name, 7 if finished else None, desk.now)
                alive.remove(name)
            desk.now += 0.5
            desk.e2.check_integrity()
        for name in alive:
            desk.e2.released(name, None, desk.now)
        desk.e2.check_integrity()
        desk.now += 181.0
        last, _ = desk.place("end*1")
        desk.e2.released(last, None, desk.now)
        for book in desk.e2.rule.books:
            assert (book.load_s, book.decode_s, book.backlog_s) == (0.0, 0.0, 0.0)
            assert (book.outstanding, book.unsent, book.decoding, book.loads) == (0, {}, 0, 0)

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(10, 400)), max_size=30))
    @settings(deadline=None)
    def test_equal_histories_give_equal_choices(self, steps: list[tuple[int, int]]) -> None:
        desks = Desk("abc"), Desk("abc")
        for document, private in steps:
            one, other = (desk.place(f"d{document}*300", private=private)[1] for desk in desks)
            assert one == other

    def test_a_request_is_placed_once(self) -> None:
        desk = Desk()
        name, _ = desk.place("doc*1")
        request = Ticket(name, Skeleton(None, (), (), 1), 0.0)
        with pytest.raises(ValueError, match="placed already"):
            desk.e2.place(request, (), 0.0)
        desk.e2.check_integrity()
