"""E2 moves a waiting request as if it had not been placed: it brings nothing to where it waits."""

from __future__ import annotations

from itertools import count

import pytest

from prism_ray.model import NO_GAP, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement.e2 import E2
from prism_ray.placement.e2_params import PLUS

ROOM = ReplicaCapacity(pool_tokens=100_000, max_running=64, prefill_ahead_tokens=8_192)


class Desk:
    """Replicas ``a`` and ``b``; requests of documents of 900 tokens and a question of 10."""

    def __init__(self, **params: object) -> None:
        calm = {"rebalance": False, "replicate": False, "decode_balance": False}
        self.e2 = E2({**calm, **params, "prefill_tokens_per_s": 1_000})
        self._numbers = count()
        for replica in "ab":
            self.e2.join(replica, ROOM, None, 0.0)

    def ticket(self, documents: str) -> Ticket:
        segments = tuple(Segment(d.encode(), 900) for d in documents)
        skeleton = Skeleton(None, segments, (NO_GAP,) * len(segments), 10)
        return Ticket(f"q{next(self._numbers)}", skeleton, 0.0)

    def place_at(self, replica: str, documents: str, *, done: bool = False) -> Ticket:
        """Placed there, whatever the rule says; and through its whole life if ``done``."""
        other = "b" if replica == "a" else "a"
        ticket = self.ticket(documents)
        self.e2.drain(other, True)
        self.e2.place(ticket, self.path(ticket), 0.0)
        self.e2.drain(other, False)
        if done:
            self.e2.sent(ticket.request_id, self.path(ticket), 0, 0.0)
            self.e2.prefilled(ticket.request_id, 0.0)
            self.e2.released(ticket.request_id, 1, 0.0)
        return ticket

    def move(self, ticket: Ticket, *, turned: bool = False) -> str | None:
        path = self.path(ticket)
        choice = self.e2.move(ticket, path[::-1] if turned else path, ["b"], 0.0)
        self.e2.check_integrity()
        return choice and choice.replica

    @staticmethod
    def path(ticket: Ticket) -> tuple:  # type: ignore[type-arg]
        return ticket.skeleton.path(ticket.skeleton.native_order)


@pytest.mark.parametrize("params", [{}, PLUS], ids=["e2", "e2+"])
class TestColdRequests:
    def test_one_goes_to_an_idle_replica_when_home_is_busy_for_longer_than_it_takes(
        self, params: dict[str, object]
    ) -> None:
        desk = Desk(**params)
        for document in "xy":
            desk.place_at("a", document)
        assert desk.move(desk.place_at("a", "z")) == "b"

    def test_it_may_have_got_another_order_since_it_was_placed(
        self, params: dict[str, object]
    ) -> None:
        desk = Desk(**params)
        for document in "uvwxy":
            desk.place_at("a", document)
        assert desk.move(desk.place_at("a", "zt"), turned=True) == "b"

    def test_what_was_there_before_it_came_keeps_it(self, params: dict[str, object]) -> None:
        desk = Desk(**params)
        desk.place_at("a", "z", done=True)
        for document in "xy":
            desk.place_at("a", document)
        assert desk.move(desk.place_at("a", "z")) is None

    def test_what_others_bring_there_keeps_it(self, params: dict[str, object]) -> None:
        """Whichever of them is first: at home the document is computed once for both."""
        desk = Desk(**params)
        for document in "xy":
            desk.place_at("a", document)
        first, second = desk.place_at("a", "z"), desk.place_at("a", "z")
        assert desk.move(first) is None
        assert desk.move(second) is None

    def test_a_front_that_was_there_is_no_more_than_that(self, params: dict[str, object]) -> None:
        desk = Desk(**params)
        desk.place_at("a", "s", done=True)
        for document in "xy":
            desk.place_at("a", document)
        ticket = desk.place_at("a", "sz")
        found = desk.e2.forest.match(desk.path(ticket))
        use = desk.e2._books.placed[ticket.request_id].use  # type: ignore[attr-defined]
        assert desk.e2.forest.held_without(use, found, found.tokens) == 900
        desk.e2._expire(500.0)
        found = desk.e2.forest.match(desk.path(ticket))
        assert desk.e2.forest.held_without(use, found, found.tokens) == 900
