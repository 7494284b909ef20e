"""The Scheduler protocol and the registry of policies.

A policy decides which waiting request a replica gets next and in which order its segments are
written. It knows tickets and counters; it knows neither credit nor clocks nor transports: the
dispatcher asks it, in rounds, and stops asking when a replica has no credit left. The same object
runs in the Serve actor and in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from prism_ray.model import Atom, DemandTable, Order, Pick, Ticket
from prism_ray.registry import Registry


class Match(NamedTuple):
    """How much of a path a replica has: cached now, and cached or being computed by sent requests."""

    cached_tokens: int
    computing_tokens: int


class CacheView(Protocol):
    """What is known of one replica's KV-cache; never changes anything."""

    def match(self, path: tuple[Atom, ...]) -> Match: ...


@runtime_checkable
class ToldCacheView(CacheView, Protocol):
    """A view of a cache whose engine may tell what it holds."""

    @property
    def exact(self) -> bool:
        """All that the engine holds is known by now, and no more is believed."""


class Round(Protocol):
    """One scheduling round: the queue frozen at its start, dispatched from its front.

    ``peek`` is repeatable and changes nothing; ``take`` dispatches exactly the pick that the last
    ``peek`` of that replica returned (ValueError otherwise). ``close`` ends the round: it takes the
    demand tables (while the batch still counts as queued), moves the batch from queued to active and
    returns a table for each replica that was given something. A round that took nothing changes
    nothing. Between ``open_round`` and ``close`` no other method of the scheduler may be called.
    """

    def peek(self, replica: str) -> Pick | None: ...

    def take(self, replica: str, pick: Pick) -> None: ...

    def close(self) -> Mapping[str, DemandTable]: ...


@runtime_checkable
class SharedRound(Round, Protocol):
    """A round in which several tenants take turns."""

    def pass_over(self, replica: str) -> bool:
        """What was offered last cannot go now, for a reason that is its tenant's own: the replica is
        offered nothing of that tenant in the rest of the round. False if nobody else is left."""


class Scheduler(Protocol):
    """Owns the window of waiting requests and the counters of waiting and active ones."""

    def add(self, ticket: Ticket, *, at_head: bool = False) -> None:
        """Queue a ticket; ``at_head`` puts back one that a replica refused. Doubled ids: ValueError."""

    def cancel(self, request_id: str) -> bool:
        """Forget a queued request; False if it is not queued."""

    def finish(self, request_id: str) -> bool:
        """Forget an active (dispatched) request, however it ended; False if it is not active."""

    def open_round(
        self, caches: Mapping[str, CacheView], homes: Mapping[str, str] | None = None
    ) -> Round:
        """Begin a round over the replicas named in ``caches``.

        ``homes`` names the replica that a placement chose for a request, by request id. With it a
        replica is offered only the requests whose home it is; without, every replica is offered all.
        """

    def forget(self, replica: str) -> None:
        """A replica is gone for good: forget what was remembered of it. ValueError while requests are
        active there; unknown names are ignored."""

    def waiting(self) -> Iterable[Ticket]:
        """Queued tickets in arrival order."""

    def describe(self, top: int = 20) -> dict[str, Any]:
        """State for people: counters, buckets, lanes; JSON-ready. At most ``top`` rows a list; what is
        told by replica is told of every one that is remembered."""

    def check_integrity(self) -> None:
        """Raise AssertionError if a counter differs from a recount."""

    def __len__(self) -> int:
        """Number of queued requests."""


@runtime_checkable
class Serializing(Protocol):
    """A policy that writes segments in another order than the client did."""

    def order_of(self, request_id: str) -> Order | None:
        """The order in which a queued request would be written if it went now; None: not queued."""


@runtime_checkable
class Watching(Protocol):
    """A policy that wants to know what becomes of the requests that it dispatched."""

    def runs(self, request_id: str) -> None:
        """A dispatched request's prefill has ended: the engine runs it. Unknown ids are ignored."""


@runtime_checkable
class Refreshing(Protocol):
    """A policy under which waiting requests keep their prefixes recent, as SGLang's fcfs does."""

    def refresh_paths(self) -> Iterable[tuple[Atom, ...]]:
        """Paths whose recency an engine's LRU renews every ``REFRESH_PASSES`` scheduling passes, the
        one to be renewed last (the oldest request's) last."""


REFRESH_PASSES = 32
"""Passes between two refreshes of waiting prefixes (SGLang's WAITING_PREFIX_REFRESH_INTERVAL)."""

SchedulerFactory = Callable[[Mapping[str, Any]], Scheduler]
POLICIES: Registry[SchedulerFactory] = Registry("policy")
