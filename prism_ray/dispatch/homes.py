"""The homes of waiting requests, kept for a placement that gives each request one.

Asks the placement when a request is new, when its home is gone, and when its home has no credit; the
dispatcher tells what becomes of a request. Knows no credit and takes no turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

from prism_ray.dispatch.open_seats import OpenSeats
from prism_ray.dispatch.seat import Seat
from prism_ray.model import Ticket
from prism_ray.placement import Choice, Homing, Path
from prism_ray.scheduling import Scheduler, Serializing

MOVES_MAX = 64
"""Waiting requests of replicas without credit that are looked at again in one round."""


class Homes:
    """``homes`` maps request to replica. New requests get theirs in ``settle``, before a round.

    ``placed_tokens``: prompt tokens of all that waits with a home.
    """

    def __init__(self, placement: Homing, scheduler: Scheduler) -> None:
        self.placement = placement
        self.homes: dict[str, str] = {}
        self._scheduler = scheduler
        self._new: dict[str, Ticket] = {}
        self._waiting: dict[str, dict[str, Ticket]] = {}
        self._tokens: dict[str, int] = {}
        self.placed_tokens = 0
        self._wanted: dict[str, None] = {}
        self._draining: set[str] = set()
        self._choices: dict[str, Choice] = {}

    # -- replicas -------------------------------------------------------------------------------

    def join(self, seat: Seat, now_s: float) -> None:
        self.placement.join(seat.replica, seat.capacity, seat, now_s)
        self._waiting[seat.replica] = {}
        self._tokens[seat.replica] = 0

    def leave(self, replica: str) -> None:
        """What waited for it waits for a new home; the placement forgets all that was there."""
        homeless = self._waiting.pop(replica)
        self.placed_tokens -= self._tokens.pop(replica)
        self._wanted.pop(replica, None)
        for request_id in homeless:
            del self.homes[request_id], self._choices[request_id]
        self._new = {**homeless, **self._new}
        self._draining.discard(replica)
        self.placement.leave(replica)

    def tokens_at(self, replica: str) -> int:
        """Prompt tokens of what waits with this home."""
        return self._tokens[replica]

    # -- requests -------------------------------------------------------------------------------

    def arrive(self, ticket: Ticket) -> None:
        self._new[ticket.request_id] = ticket

    def withdraw(self, request_id: str, now_s: float) -> None:
        """A waiting request is not going to be sent."""
        if self._new.pop(request_id, None) is None:
            self._stop_waiting(request_id)
            self.placement.released(request_id, None, now_s)

    def sent(self, request_id: str, path: Path, cached_tokens: int, now_s: float) -> Choice:
        """A request went to its home; returns why that was its home."""
        choice = self._stop_waiting(request_id)
        self.placement.sent(request_id, path, cached_tokens, now_s)
        return choice

    def _stop_waiting(self, request_id: str) -> Choice:
        home = self.homes.pop(request_id)
        own = self._waiting[home]
        self._count(home, -own.pop(request_id).skeleton.prompt_tokens)
        if not own:
            del self._wanted[home]
        return self._choices.pop(request_id)

    # -- rounds ---------------------------------------------------------------------------------

    def settle(self, seats: Mapping[str, Seat], able: OpenSeats, now_s: float) -> list[str]:
        """Give every waiting request a home; returns the open replicas that something waits for.

        Most credit first.
        """
        if able.draining != self._draining:
            self._follow_draining(set(able.draining), now_s)
        if self._new and len(self._draining) < len(seats):
            new, self._new = self._new, {}
            for ticket in new.values():
                path = self._path(ticket)
                self._set(ticket, self.placement.place(ticket, path, now_s))
        shut = [name for name in self._wanted if name not in able]
        if shut and able:
            self._move(shut, able.names(), now_s)
        ready = [name for name in self._wanted if name in able]
        return sorted(ready, key=lambda name: (-seats[name].credit_tokens, name))

    def _follow_draining(self, draining: set[str], now_s: float) -> None:
        for name in sorted(draining ^ self._draining):
            self.placement.drain(name, name in draining)
            for request_id, ticket in list(self._waiting[name].items()):
                if name in draining:
                    self._stop_waiting(request_id)
                    self.placement.released(request_id, None, now_s)
                    self._new[request_id] = ticket
        self._draining = draining

    def _move(self, shut: list[str], ready: list[str], now_s: float) -> None:
        """Ask about the newest first: the oldest are the next to go where they are.

        Who has been looked at is last next time: there may be more replicas than one round looks at.
        """
        each = max(1, MOVES_MAX // len(shut))
        for name in shut[:MOVES_MAX]:
            del self._wanted[name]
            self._wanted[name] = None
            for ticket in list(islice(reversed(self._waiting[name].values()), each)):
                choice = self.placement.move(ticket, self._path(ticket), ready, now_s)
                if choice is not None:
                    self._stop_waiting(ticket.request_id)
                    self._set(ticket, choice)

    def _set(self, ticket: Ticket, choice: Choice) -> None:
        self.homes[ticket.request_id] = choice.replica
        self._waiting[choice.replica][ticket.request_id] = ticket
        self._count(choice.replica, ticket.skeleton.prompt_tokens)
        self._wanted[choice.replica] = None
        self._choices[ticket.request_id] = choice

    def _count(self, home: str, tokens: int) -> None:
        self._tokens[home] += tokens
        self.placed_tokens += tokens

    def _path(self, ticket: Ticket) -> Path:
        order = None
        if isinstance(self._scheduler, Serializing):
            order = self._scheduler.order_of(ticket.request_id)
        skeleton = ticket.skeleton
        return skeleton.path(skeleton.native_order if order is None else order)

    def check_integrity(self, waiting: set[str], sent: Mapping[str, str]) -> None:
        """AssertionError unless exactly these waiting requests are here, each once.

        And unless the placement has them and what was sent (by its replica) where they are.
        """
        self.placement.check_integrity()
        assert self.placement.homes() == {**self.homes, **sent}
        assert waiting == self._new.keys() | self.homes.keys()
        assert not self._new.keys() & self.homes.keys()
        assert self._choices.keys() == self.homes.keys()
        by_replica = {r: name for name, own in self._waiting.items() for r in own}
        assert by_replica == self.homes
        assert self._tokens == {
            name: sum(t.skeleton.prompt_tokens for t in own.values())
            for name, own in self._waiting.items()
        }
        assert self.placed_tokens == sum(self._tokens.values())
        assert self._wanted.keys() == {name for name, own in self._waiting.items() if own}
        assert Counter(self.homes.values()) == Counter(
            {name: len(own) for name, own in self._waiting.items() if own}
        )
