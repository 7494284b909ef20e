"""A choice that a replica's own view of its cache contradicts leaves nothing behind."""

from __future__ import annotations

import pytest

from prism_ray.model import NO_GAP, Atom, Segment, Skeleton, Ticket
from prism_ray.placement.e2 import E2
from prism_ray.placement.e2_params import PLUS

from .e2_desk import ROOM, Truth


class Desk:
    """E2 over replicas whose truth the test sets; all prompts are one document and a question."""

    def __init__(self, replicas: str, **params: object) -> None:
        self.e2 = E2({"prefill_tokens_per_s": 1_000, **params})
        self.truths = {replica: Truth() for replica in replicas}
        for replica, truth in self.truths.items():
            self.e2.join(replica, ROOM, truth, 0.0)
        self._served = 0

    def serve(self, document: bytes = b"doc", private: int = 10) -> tuple[str, str]:
        self._served += 1
        skeleton = Skeleton(None, (Segment(document, 900),), (NO_GAP,), private)
        ticket = Ticket(f"q{self._served}", skeleton, 0.0)
        path = skeleton.path((0,))
        choice = self.e2.place(ticket, path, 0.0)
        self.e2.sent(ticket.request_id, path, 0, 0.0)
        self.e2.prefilled(ticket.request_id, 0.0)
        self.e2.released(ticket.request_id, 1, 0.0)
        return choice.replica, choice.kind


def test_a_due_copy_is_not_used_up_by_a_choice_that_was_not_made() -> None:
    """Two of three are believed to hold it: the copy would go to the third, whose front is gone."""
    desk = Desk("abc", spill=False, rebalance=False)
    homes = {desk.serve(b"head")[0]}
    node = desk.e2.forest.match((Atom(b"head", 900),)).nodes[0]
    other = next(r for r in "abc" if r not in homes)
    desk.e2.forest.use((Atom(b"head", 900),), other, 0.0)
    for wait_s in (*[0.0] * 8, 90.0):
        desk.e2.replication.waited(node, wait_s, 0.9, 0.0)
    assert desk.e2.replication.is_due(node)
    last = next(r for r in "abc" if r not in {*homes, other})
    desk.e2.forest.use((Atom(b"head", 900),), last, 0.0)
    desk.truths[last].tokens = 0
    for replica in "abc":
        book = desk.e2._books.by_name[replica]
        book.backlog_s = 0.0 if replica == last else 50.0  # type: ignore[attr-defined]
    assert desk.serve(b"head") == (last, "replicate"), "all were believed to hold it"


def test_a_new_replicas_turn_counts_once_however_often_the_choice_is_made() -> None:
    desk = Desk("ab", spill=False)
    for n in range(150):
        desk.serve(b"doc %d" % n)
    desk.e2.join("new", ROOM, None, 0.0)
    before = desk.e2.rule._explored
    for replica in "ab":
        desk.truths[replica].tokens = 0
        desk.e2.forest.use((Atom(b"doc", 900),), replica, 0.0)
    _, kind = desk.serve(b"doc", private=2_000)
    assert (kind, desk.e2.rule._explored) == ("explore", before + 1)


def test_a_prefix_is_asked_for_once_however_often_the_choice_is_made() -> None:
    desk = Desk("ab", **PLUS)
    for replica in "ab":
        desk.e2.forest.use((Atom(b"doc", 900),), replica, 0.0)
    desk.truths["a"].tokens = 0
    book = desk.e2._books.by_name["b"]
    book.backlog_s = 0.5  # type: ignore[attr-defined]
    node = desk.e2.forest.match((Atom(b"doc", 900),)).nodes[0]
    assert desk.serve() == ("b", "exploit")
    assert node.asked == (pytest.approx(0.1), 0.0)
