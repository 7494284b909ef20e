"""One replica as the dispatcher sees it: capacity, credit, what was sent and not yet returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from prism_ray.cache_news import CacheNews
from prism_ray.dispatch.exact_residency import ExactResidency
from prism_ray.dispatch.footprint import Footprint
from prism_ray.dispatch.predicted_residency import PredictedResidency
from prism_ray.dispatch.residency import Residency, ResidencyState
from prism_ray.model import Atom, Order, ReplicaCapacity, ReplicaSnapshot, Ticket
from prism_ray.scheduling import Match

RESERVED_PART = 8
"""One slot in so many is kept from tenants that have many."""


@dataclass(slots=True)
class Sent:
    """A dispatched request: what it is predicted to cost, and whether its prefill has ended.

    ``guest``: nothing else of its tenant waited when it was sent, but others did.
    """

    ticket: Ticket
    order: Order
    plan_version: int
    uncached_tokens: int
    guest: bool = False
    prefilled: bool = False


class Seat:
    """Credit and books of one replica (architecture, "Late binding").

    credit = max(0, prefill_ahead - predicted uncached tokens sent and not yet prefilled). A request
    is admitted whenever credit is above zero, so it may overdraw, and only while fewer than
    ``slots`` requests are sent and all of them fit the pool at their output limits.

    Where several tenants are about, the last eighth of the running requests is for those that have
    less than an equal part of them here: a slot returns only when an answer ends. And an engine
    prefills what it has been sent in one batch, so a small request takes as long as all that
    comes with it: while a guest's prefill is under way, requests of tenants with a backlog
    follow only as far as they at most double what guests have there.

    ``changed`` is told after every change that ``open`` or ``idle_prefill`` can depend on.
    """

    def __init__(
        self,
        replica: str,
        incarnation: str,
        capacity: ReplicaCapacity,
        changed: Callable[[Seat], None] | None = None,
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self.capacity = capacity
        self.footprint = Footprint()
        self._exact = ExactResidency() if capacity.tells_cache else None
        self.residency: Residency = self._exact or PredictedResidency()
        self.sent: dict[str, Sent] = {}
        self.unprefilled_tokens = 0
        self.unprefilled_requests = 0
        self.sent_by: Counter[bytes] = Counter()
        self.guest_tokens = 0
        self.behind_guests_tokens = 0
        self.foreign_tokens = 0
        self.foreign_requests = 0
        self.plan_version = 0
        self.snapshot: ReplicaSnapshot | None = None
        self._draining = False
        self._slots = capacity.max_running
        self._changed = changed or _nobody_asks

    @property
    def draining(self) -> bool:
        """The replica gets nothing new for now."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._changed(self)

    @property
    def slots(self) -> int:
        """Requests that may be here at once: what the replica takes, or what a placement paces it to."""
        return self._slots

    def pace(self, slots: int | None) -> None:
        """At most so many requests from now on; those that are here stay. None: no bound but its own."""
        most = self.capacity.max_running
        self._slots = most if slots is None else min(most, max(1, slots))
        self._changed(self)

    def count_foreign(self, requests: int, tokens: int) -> None:
        """So many requests are there that this epoch did not send, with so many tokens to prefill."""
        self.foreign_requests = requests
        self.foreign_tokens = tokens
        self._changed(self)

    @property
    def credit_tokens(self) -> int:
        ahead = self.capacity.prefill_ahead_tokens - self.unprefilled_tokens - self.foreign_tokens
        return max(0, ahead)

    @property
    def load_tokens(self) -> int:
        """Predicted tokens still to prefill here: what least-loaded placement compares."""
        return self.unprefilled_tokens + self.foreign_tokens

    @property
    def idle_prefill(self) -> bool:
        """No prefill left to do: a round for this replica should not wait (A5)."""
        return self.unprefilled_requests == 0 and self.foreign_tokens == 0

    @property
    def open(self) -> bool:
        running = len(self.sent) + self.foreign_requests
        return not self._draining and self.credit_tokens > 0 and running < self._slots

    def fits(self, ticket: Ticket, path: tuple[Atom, ...]) -> bool:
        """Whether the pool holds this request beside those sent, each grown to its output limit.

        A request alone on the replica always goes: it was checked against the pool at the door.
        """
        if not self.sent and not self.foreign_requests:
            return True
        own = ticket.skeleton.private_tokens + ticket.max_new_tokens
        added = self.footprint.added_tokens(path, own)
        return self.footprint.tokens + added <= self.capacity.pool_tokens

    def match(self, path: tuple[Atom, ...]) -> Match:
        """What is known of the replica's KV-cache now: a seat is a ``scheduling.CacheView``."""
        return self.residency.match(path)

    @property
    def exact(self) -> bool:
        """The view is what the engine says (``scheduling.ToldCacheView``)."""
        return self.residency.state is ResidencyState.EXACT

    def keeps_room(self, tenant: bytes, tenants: int) -> bool:
        """Whether what is free here is for others of so many tenants that are about."""
        slots = self._slots
        free = slots - len(self.sent) - self.foreign_requests
        return free <= slots // RESERVED_PART and self.sent_by[tenant] * tenants >= slots

    def gives_way(self, ticket: Ticket, path: tuple[Atom, ...]) -> bool:
        """Whether a request of a tenant with a backlog stays back for the guests that are here."""
        if not self.guest_tokens:
            return False
        uncached = _uncached(ticket, self.residency.match(path))
        return self.behind_guests_tokens + uncached > self.guest_tokens

    def send(self, ticket: Ticket, order: Order, *, guest: bool = False) -> Sent:
        """Book a dispatch under the plan that is being written (``plan_version`` + 1)."""
        path = ticket.skeleton.path(order)
        own = ticket.skeleton.private_tokens + ticket.max_new_tokens
        self.footprint.add(ticket.request_id, path, own)
        room = self.capacity.pool_tokens - self.footprint.tokens
        match = self.residency.send(ticket.request_id, path, room)
        uncached = _uncached(ticket, match)
        sent = Sent(ticket, order, self.plan_version + 1, uncached, guest)
        self.sent[ticket.request_id] = sent
        self.sent_by[ticket.tenant] += 1
        if guest:
            self.guest_tokens += uncached
        elif self.guest_tokens:
            self.behind_guests_tokens += uncached
        self.unprefilled_tokens += uncached
        self.unprefilled_requests += 1
        self._changed(self)
        return sent

    def prefill_ended(self, request_id: str, attempt: int) -> bool:
        """Return the request's credit; False if nothing was owed."""
        sent = self.sent.get(request_id)
        if sent is None or sent.prefilled or sent.ticket.attempt != attempt:
            return False
        sent.prefilled = True
        self._return_credit(sent)
        self.residency.prefill_ended(request_id)
        self._changed(self)
        return True

    def release(self, request_id: str, attempt: int) -> Sent | None:
        """The request holds nothing here any more: all that it occupied returns."""
        sent = self.sent.get(request_id)
        if sent is None or sent.ticket.attempt != attempt:
            return None
        del self.sent[request_id]
        self.sent_by[sent.ticket.tenant] -= 1
        if not self.sent_by[sent.ticket.tenant]:
            del self.sent_by[sent.ticket.tenant]
        if not sent.prefilled:
            self._return_credit(sent)
        self.footprint.remove(request_id)
        self.residency.release(request_id)
        self._changed(self)
        return sent

    def cache_news(self, news: CacheNews) -> None:
        """What the engine says of its cache; nothing where its capacity said that it never would."""
        if self._exact is not None:
            self._exact.apply(news)

    @property
    def wants_snapshot(self) -> bool:
        """The engine should name everything that it has cached."""
        return self._exact is not None and self._exact.wants_snapshot

    def _return_credit(self, sent: Sent) -> None:
        self.unprefilled_tokens -= sent.uncached_tokens
        self.unprefilled_requests -= 1
        if sent.guest:
            self.guest_tokens -= sent.uncached_tokens
            if not self.guest_tokens:
                self.behind_guests_tokens = 0

    def check_integrity(self) -> None:
        """Raise AssertionError unless every count equals a recount."""
        owed = [s for s in self.sent.values() if not s.prefilled]
        assert self.unprefilled_tokens == sum(s.uncached_tokens for s in owed)
        assert self.unprefilled_requests == len(owed)
        assert self.sent_by == Counter(s.ticket.tenant for s in self.sent.values())
        assert self.guest_tokens == sum(s.uncached_tokens for s in owed if s.guest)
        assert len(self.footprint) == len(self.sent)
        self.footprint.check_integrity()
        self.residency.check_integrity()


def _nobody_asks(seat: Seat) -> None:
    pass


def _uncached(ticket: Ticket, match: Match) -> int:
    """The engine always recomputes the last token, so a hit is at most length - 1."""
    return max(1, ticket.skeleton.prompt_tokens - match.cached_tokens)
