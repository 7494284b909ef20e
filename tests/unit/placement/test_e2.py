"""E2: exploits, explores, balances and gives back as Preble says, and never loses count."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.model import NO_GAP, Atom, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement import Choice, Path, make_placement
from prism_ray.placement.e2 import E2
from prism_ray.placement.e2_params import PLUS
from prism_ray.scheduling import Match

ROOM = ReplicaCapacity(pool_tokens=100_000, max_running=64, prefill_ahead_tokens=8_192)


class Truth:
    """What a replica really has cached of any path, in tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def match(self, path: tuple[Atom, ...]) -> Match:
        tokens = min(self.tokens, sum(atom.tokens for atom in path))
        return Match(tokens, tokens)


class Desk:
    """An E2 with numbered requests: ``place`` a prompt written as ``name*tokens``."""

    def __init__(self, replicas: Iterable[str] = "ab", **params: object) -> None:
        self.e2 = E2({"prefill_tokens_per_s": 1_000, **params})
        self.now = 0.0
        self._numbers = (f"q{n}" for n in count())
        self.paths: dict[str, Path] = {}
        for replica in replicas:
            self.e2.join(replica, ROOM, None, 0.0)

    def place(self, *segments: str, private: int = 10) -> tuple[str, Choice]:
        parts = [Segment(s.partition("*")[0].encode(), int(s.partition("*")[2])) for s in segments]
        skeleton = Skeleton(None, tuple(parts), (NO_GAP,) * len(parts), private)
        request = Ticket(next(self._numbers), skeleton, self.now)
        self.paths[request.request_id] = skeleton.path(skeleton.native_order)
        choice = self.e2.place(request, self.paths[request.request_id], self.now)
        return request.request_id, choice

    def serve(self, *segments: str, private: int = 10, output: int = 1) -> str:
        """Through a whole life at once; returns the replica."""
        name, choice = self.place(*segments, private=private)
        self.send(name)
        self.e2.prefilled(name, self.now)
        self.e2.released(name, output, self.now)
        return choice.replica

    def send(self, name: str, cached: int = 0) -> None:
        self.e2.sent(name, self.paths[name], cached, self.now)


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


class TestBalance:
    def test_the_heaviest_gives_up_exploiting_requests_until_loads_are_close(self) -> None:
        desk = Desk(busy_share=0.001, spill=False, replicate=False)
        home = desk.serve("doc*900")
        kinds = []
        for _ in range(30):
            name, choice = desk.place("doc*900", private=600)
            kinds.append(choice.kind)
            desk.send(name)
            desk.e2.prefilled(name, desk.now)
            desk.e2.released(name, 1, desk.now)
        loads = {b["replica"]: b["load_s"] for b in desk.e2.describe()["replicas"]}
        assert "rebalance" in kinds
        assert max(loads.values()) <= 1.6 * min(loads.values())
        assert home in loads

    def test_nothing_is_rebalanced_when_told_not_to(self) -> None:
        desk = Desk(busy_share=0.001, spill=False, replicate=False, rebalance=False)
        home = desk.serve("doc*900")
        assert {desk.serve("doc*900", private=600) for _ in range(30)} == {home}

    def test_affinity_is_kept_under_imbalance_as_far_as_waiting_is_cheaper(self) -> None:
        """Other routers drop affinity altogether when loads differ: hits collapse at high load."""
        desk = Desk(rebalance=False, replicate=False)
        home = desk.serve("doc*900")
        for _ in range(5):
            _, choice = desk.place("doc*900")
            assert choice.replica == home

    def test_a_long_queue_spills_to_where_it_is_done_sooner(self) -> None:
        desk = Desk(rebalance=False, replicate=False, spill_ratio=1)
        home = desk.serve("doc*900")
        desk.serve("other*5000")
        homes = [desk.place("doc*900", private=700)[1] for _ in range(20)]
        assert homes[0].replica == home
        assert homes[-1].replica != home or any(c.kind == "spill" for c in homes)

    @pytest.mark.parametrize(("other_load_s", "kind"), [(10.0, "exploit"), (7.0, "rebalance")])
    def test_loads_that_differ_by_less_than_the_threshold_move_nothing(
        self, other_load_s: float, kind: str
    ) -> None:
        desk = Desk(busy_share=0.001, spill=False, replicate=False)
        home = desk.serve("doc*100")
        for book in desk.e2.rule.books:
            book.load_s = 12.0 if book.replica == home else other_load_s
        _, choice = desk.place("doc*100")
        assert (choice.kind, choice.replica == home) == (kind, kind == "exploit")

    @pytest.mark.parametrize(("near_minimum", "fast_gets_it"), [(1.1, False), (2.0, True)])
    def test_only_replicas_near_the_shortest_wait_are_spilled_to(
        self, near_minimum: float, fast_gets_it: bool
    ) -> None:
        desk = Desk(
            "abc", rebalance=False, replicate=False, spill_ratio=1, near_minimum=near_minimum
        )
        home = desk.serve("doc*900")
        shortest, fast = (b for b in desk.e2.rule.books if b.replica != home)
        for book in desk.e2.rule.books:
            book.backlog_s = 5.0
        shortest.backlog_s, fast.backlog_s = 1.0, 1.3
        fast.speed.factor = 0.1
        _, choice = desk.place("doc*900", private=700)
        assert choice.kind == "spill"
        assert choice.replica == (fast if fast_gets_it else shortest).replica

    def test_exploring_prefers_a_replica_that_mostly_decodes(self) -> None:
        desk = Desk("abc", decode_token_s=0.1)
        book = desk.e2.rule.books[2]
        desk.serve("x*100")
        desk.serve("y*100")
        desk.serve("z*100")
        book.decode_s = 0.9 * book.load_s
        _, choice = desk.place("new*100")
        assert (choice.replica, choice.kind) == (book.replica, "decode")
        book.decode_s = 0.0

    def test_a_replica_at_a_tenth_of_the_speed_gets_a_tenth(self) -> None:
        desk = Desk("abc", equal_cost=1.0)
        slow = "b"
        homes = []
        for number in range(600):
            desk.now += 0.2
            name, choice = desk.place(f"doc{number}*1000")
            homes.append(choice.replica)
            desk.send(name)
            desk.now += 1.0 if choice.replica == slow else 0.1
            desk.e2.prefilled(name, desk.now)
            desk.e2.released(name, 1, desk.now)
        late = homes[300:]
        assert late.count(slow) < 0.4 * late.count("a")


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


class TestReplication:
    def queue_grows(self, desk: Desk) -> list[Choice]:
        """One hot document whose requests wait longer and longer before they are sent."""
        choices = []
        for number in range(60):
            name, choice = desk.place("doc*900")
            choices.append(choice)
            desk.now += 0.05 + (0.2 * (number - 20) if number > 20 else 0)
            desk.send(name)
            desk.e2.prefilled(name, desk.now)
            desk.e2.released(name, 1, desk.now)
        return choices

    def test_a_prefix_whose_queueing_time_doubles_gets_another_replica(self) -> None:
        desk = Desk("abc", spill=False, rebalance=False)
        choices = self.queue_grows(desk)
        assert [c.kind for c in choices].count("replicate") >= 1
        assert len({c.replica for c in choices}) > 1
        assert all(c.kind != "replicate" for c in choices[:20])

    def test_nothing_is_copied_when_told_not_to(self) -> None:
        desk = Desk("abc", spill=False, rebalance=False, replicate=False)
        assert len({c.replica for c in self.queue_grows(desk)}) == 1

    def test_copies_are_given_up_within_two_windows_after_it_cools(self) -> None:
        desk = Desk("abc", spill=False, rebalance=False)
        self.queue_grows(desk)
        desk.now += 180.0
        for _ in range(19):
            desk.serve("doc*900")
            desk.now += 9.6
        assert len({desk.serve("doc*900") for _ in range(10)}) == 1

    def test_a_copy_takes_its_part_of_the_subtree(self) -> None:
        desk = Desk("ab", spill=False, rebalance=False)
        for leaf in "wxyz":
            for _ in range(4):
                desk.serve("doc*900", f"{leaf}*50")
        node = desk.e2.forest.match((Atom(b"doc", 900),)).nodes[0]
        desk.e2.replication.waited(node, 0.0, 0.0, desk.now)
        desk.e2.replication.copied(node, 2, desk.now)
        desk.e2.replication.split(node, "b", 2, desk.now)
        moved = [child for child in node.children.values() if child.moved is not None]
        assert 0 < sum(child.load_s for child in moved) <= node.load_s / 2
        taken = {leaf: desk.place("doc*900", f"{leaf}*50")[1] for leaf in "wxyz"}
        split = [leaf for leaf, choice in taken.items() if choice.kind == "split"]
        assert len(split) == len(moved)
        assert {taken[leaf].replica for leaf in split} == {"b"}
        desk.now += 180.0
        assert all(desk.place("doc*900", f"{leaf}*50")[1].kind != "split" for leaf in "wxyz")


class TestWhoIsBusyNow:
    """What ``e2+`` adds: the load of three minutes says little of who is busy now."""

    def loaded(self, **params: object) -> tuple[Desk, str, str]:
        """A document that two replicas hold: the one had most load lately, the other has work now."""
        desk = Desk("ab", replicate=False, rebalance=False, decode_balance=False, **params)
        tired = desk.serve("doc*900")
        busy = "b" if tired == "a" else "a"
        for _ in range(40):
            desk.serve("doc*900", private=500)
        desk.e2.drain(tired, True)
        desk.place("doc*900")
        desk.e2.drain(tired, False)
        return desk, tired, busy

    def test_the_load_of_the_window_decides_in_e2_the_present_wait_in_e2_plus(self) -> None:
        desk, tired, busy = self.loaded(spill=False)
        assert desk.place("doc*900")[1].replica == busy
        desk, tired, _ = self.loaded(**{k: v for k, v in PLUS.items() if "balance" not in k})
        assert desk.place("doc*900")[1].replica == tired

    def test_a_prefill_that_is_nearly_done_is_waited_for_rather_than_one_that_began(self) -> None:
        desk = Desk("ab", **PLUS)
        first, early = desk.place("x*800")
        desk.send(first)
        desk.now += 0.7
        second, late = desk.place("y*800")
        desk.send(second)
        assert early.replica != late.replica
        assert desk.place("z*400")[1].replica == early.replica

    def test_a_prefill_never_counts_as_done_before_it_is(self) -> None:
        desk = Desk("a", **PLUS)
        name, _ = desk.place("x*800")
        desk.send(name)
        desk.now += 60.0
        book = desk.e2.rule.books[0]
        assert 0 < book.backlog_left_s(desk.now) < 0.2 * book.backlog_s
        desk.e2.prefilled(name, desk.now)
        assert book.backlog_left_s(desk.now) == 0.0

    def copies(
        self, uses: int, every_s: float, private: int, burst: int, **params: object
    ) -> set[str]:
        """Who serves a document that was used so often, when a burst of it comes."""
        desk = Desk("abcd", **{**PLUS, "replicate": False, **params})
        for _ in range(uses):
            desk.serve("doc*900", private=private)
            desk.now += every_s
        return {desk.place("doc*900", private=private)[1].replica for _ in range(burst)}

    def test_the_copy_of_a_prefix_that_many_use_is_cheap(self) -> None:
        """A burst goes elsewhere sooner, since others will use what it computes there."""
        busy = {"every_s": 0.4, "private": 400, "burst": 12}
        assert len(self.copies(200, **busy)) == 4
        assert len(self.copies(200, **busy, copy_shared=False)) < 4
        assert len(self.copies(2, **busy)) < 4

    def test_a_copy_that_nothing_keeps_busy_is_not(self) -> None:
        """Else a burst now and then would keep the copies of a document that has cooled."""
        assert len(self.copies(60, every_s=2.9, private=100, burst=14)) == 1

    def test_holders_are_as_many_as_its_present_rate_keeps_busy(self) -> None:
        """A document gets hot in a moment: its load over three minutes does not know that yet."""
        needed = {}
        for recent_s in (0.0, 10.0):
            desk = Desk("abcdef", **{**PLUS, "replicate": False, "recent_s": recent_s})
            for _ in range(20):
                desk.serve("doc*900", private=500)
                desk.now += 5.0
            node = desk.e2.forest.match((Atom(b"doc", 900),)).nodes[0]
            books = list(desk.e2.rule.books)
            for _ in range(40):
                desk.serve("doc*900", private=500)
                desk.now += 0.1
            needed[recent_s] = len(desk.e2.rule._needed(node, books, desk.now))
        assert needed[0.0] < needed[10.0] == 6

    def test_its_parameters_can_be_given_one_by_one(self) -> None:
        made = make_placement("e2+", {"pace": False, "spill_ratio": 7})
        assert isinstance(made, E2)
        assert (made.params.pace, made.params.spill_ratio) == (False, 7)
        assert made.params.residual
        assert made.describe()["placement"] == "e2+"
        with pytest.raises(ValueError, match="no_such"):
            make_placement("e2+", {"no_such": 1})


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
