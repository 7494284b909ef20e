"""E2 balances: the heaviest gives work up, and a prefix that is in demand gets copies while it is."""

from __future__ import annotations

import pytest

from prism_ray.model import Atom
from prism_ray.placement import Choice

from .e2_desk import Desk


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
