"""What ``e2+`` adds to E2: who is busy now, and what a copy costs those who share it."""

from __future__ import annotations

import pytest

from prism_ray.model import Atom
from prism_ray.placement import make_placement
from prism_ray.placement.e2 import E2
from prism_ray.placement.e2_params import PLUS

from .e2_desk import Desk


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
