"""Equations (7)-(12) of the PRISM paper, evaluated from scratch over plain lists of tickets.

This is the twin that the incremental scheduler is compared with. It imports the nouns of
``prism_ray.model`` and nothing that decides; it stores no counter, no bucket and no order between
rounds. It is quadratic and worse: read it next to the paper, not next to a profiler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism_ray.model import Lane, Order, SegmentId, Signature, Ticket

STRICT_WEIGHTS = (2.0**32, 2.0**21, 1.0)
"""w_a, w_n, w_g so far apart that P compares (A, N, G) like digits: for N < 2,048 and G < 2**21."""


@dataclass(frozen=True)
class Params:
    """The paper's numbers, and switches where its text allows two readings."""

    w_active: float = 1e6
    w_next: float = 1e5
    w_global: float = 1.0
    f_front: int = 3
    kappa: int = 1
    alpha_size: float = 1.0
    beta_util: float = 0.5
    q_cold: int = 2
    batch_max: int = 32
    priority: str = "weighted"
    bucket_segments: str = "union"
    active: str = "dispatched"
    batch: str = "credit"
    lanes: str = "rate"
    window_max: int = 1024
    memory_requests: int = 2048

    @property
    def weights(self) -> tuple[float, float, float]:
        """w_a, w_n, w_g of equation (9)."""
        if self.priority == "lexicographic":
            return STRICT_WEIGHTS
        return (self.w_active, self.w_next, self.w_global)


@dataclass(frozen=True)
class World:
    """Everything the equations look at: who waits, who runs where, and what was seen first.

    ``queue`` is in queue order, ``active`` holds the dispatched tickets of each replica,
    ``dispatched`` counts the dispatches of each replica since it exists, ``sent`` holds its newest
    ``memory`` ones, and ``seen`` lists the segments of all these tickets in the order in which they
    came up: a segment's index is its rank. ``started`` are the active requests whose prefill has ended.
    """

    queue: tuple[Ticket, ...] = ()
    active: Mapping[str, tuple[Ticket, ...]] = field(default_factory=dict)
    dispatched: Mapping[str, int] = field(default_factory=dict)
    seen: tuple[SegmentId, ...] = ()
    sent: Mapping[str, tuple[Ticket, ...]] = field(default_factory=dict)
    memory: int = 32
    started: frozenset[str] = frozenset()

    @property
    def running(self) -> list[Ticket]:
        return [ticket for tickets in self.active.values() for ticket in tickets]

    def counted_active(self, params: Params) -> list[Ticket]:
        """Whom A counts: all that were dispatched, or those that the engine runs."""
        if params.active == "running":
            return [ticket for ticket in self.running if ticket.request_id in self.started]
        return self.running

    def counted_queued(self, params: Params) -> list[Ticket]:
        """Whom G counts: everybody here whom A does not."""
        active = {ticket.request_id for ticket in self.counted_active(params)}
        return [t for t in (*self.queue, *self.running) if t.request_id not in active]

    def add(self, ticket: Ticket, at_head: bool = False) -> World:
        queue = (ticket, *self.queue) if at_head else (*self.queue, ticket)
        fresh = dict.fromkeys(s.id for s in ticket.skeleton.segments)  # each once, as written
        return replace(
            self, queue=queue, seen=self.seen + tuple(s for s in fresh if s not in self.seen)
        )

    def cancel(self, request_id: str) -> World:
        return replace(self, queue=without(request_id, self.queue))._forget()

    def finish(self, request_id: str) -> World:
        active = {name: without(request_id, tickets) for name, tickets in self.active.items()}
        return replace(self, active=active, started=self.started - {request_id})._forget()

    def start(self, request_id: str) -> World:
        return replace(self, started=self.started | {request_id})

    def dispatch(self, ticket: Ticket, replica: str) -> World:
        return replace(
            self,
            queue=without(ticket.request_id, self.queue),
            active={**self.active, replica: (*self.active.get(replica, ()), ticket)},
            dispatched={**self.dispatched, replica: self.dispatched.get(replica, 0) + 1},
            sent={**self.sent, replica: (*self.sent.get(replica, ()), ticket)[-self.memory :]},
        )._forget()

    def _forget(self) -> World:
        """A segment that nobody holds any more loses its rank; when it returns it comes last."""
        remembered = [ticket for tickets in self.sent.values() for ticket in tickets]
        held = (*self.queue, *self.running, *remembered)
        return replace(self, seen=tuple(s for s in self.seen if count(s, held) > 0))


@dataclass(frozen=True)
class Bucket:
    """Requests with one signature, in queue order, and how strong the bucket is."""

    signature: Signature
    tickets: tuple[Ticket, ...]
    score: float


@dataclass(frozen=True)
class Choice:
    """One dispatch that the equations ask for."""

    request_id: str
    order: Order
    lane: Lane
    signature: Signature
    score: float


def without(request_id: str, tickets: Iterable[Ticket]) -> tuple[Ticket, ...]:
    return tuple(t for t in tickets if t.request_id != request_id)


def segments_of(ticket: Ticket) -> frozenset[SegmentId]:
    """R(q): a set, so a segment written twice in one prompt counts once."""
    return frozenset(s.id for s in ticket.skeleton.segments)


def count(segment: SegmentId, tickets: Iterable[Ticket]) -> int:
    """Equations (7) and (8): G over the queued, A over the active, N over a batch."""
    return sum(1 for ticket in tickets if segment in segments_of(ticket))


def priority(
    world: World, params: Params, segment: SegmentId, batch: Sequence[Ticket] = ()
) -> float:
    """Equation (9), P(r; B); an empty batch gives P(r; nothing) of alignment and signatures."""
    w_active, w_next, w_global = params.weights
    return (
        w_active * count(segment, world.counted_active(params))
        + w_next * count(segment, batch)
        + w_global * count(segment, world.counted_queued(params))
    )


def strongest_first(
    world: World, params: Params, ticket: Ticket, slots: Iterable[int]
) -> list[int]:
    """``slots`` of the ticket's skeleton by falling P(r; nothing), equals by who was seen first."""

    def key(slot: int) -> tuple[float, int, int]:
        segment = ticket.skeleton.segments[slot].id
        return (-priority(world, params, segment), world.seen.index(segment), slot)

    return sorted(slots, key=key)


def aligned_order(world: World, params: Params, ticket: Ticket) -> Order:
    """Pi*: in each run the f_front strongest segments come first, the others keep their order."""
    order = list(range(len(ticket.skeleton.segments)))
    for run in ticket.skeleton.runs:
        front = strongest_first(world, params, ticket, run)[: params.f_front]
        rest = [index for index in run if index not in front]
        for slot, index in zip(run, front + rest, strict=True):
            order[slot] = index
    return tuple(order)


def signature(world: World, params: Params, ticket: Ticket) -> Signature:
    """Equation (10): the kappa strongest segments, written in the order of Pi*."""
    order = aligned_order(world, params, ticket)
    written = list(dict.fromkeys(ticket.skeleton.segments[index].id for index in order))
    by_strength = strongest_first(world, params, ticket, order)
    top = list(dict.fromkeys(ticket.skeleton.segments[index].id for index in by_strength))
    return tuple(segment for segment in written if segment in top[: params.kappa])


def utility(world: World, params: Params, name: Signature, tickets: Sequence[Ticket]) -> float:
    """Equation (11): the mean of P(r; B_hot) over the bucket's segments; zero if it has none."""
    hot = tickets[: params.batch_max - params.q_cold]
    members: Collection[SegmentId] = frozenset[SegmentId]().union(*map(segments_of, tickets))
    if params.bucket_segments == "signature":
        members = name
    if not members:
        return 0.0
    return sum(priority(world, params, segment, hot) for segment in members) / len(members)


def score(world: World, params: Params, name: Signature, tickets: Sequence[Ticket]) -> float:
    """Equation (12)."""
    return params.alpha_size * len(tickets) + params.beta_util * utility(
        world, params, name, tickets
    )


def buckets(world: World, params: Params) -> list[Bucket]:
    """The buckets of the scanned requests, best first, equals by their oldest request."""
    scanned = world.queue[: params.window_max]
    groups: dict[Signature, list[Ticket]] = {}
    for ticket in scanned:  # in queue order: a group stands where its oldest request stands
        groups.setdefault(signature(world, params, ticket), []).append(ticket)
    found = [
        Bucket(name, tuple(tickets), score(world, params, name, tickets))
        for name, tickets in groups.items()
    ]
    return sorted(found, key=lambda bucket: -bucket.score)  # sorted() keeps equals


def is_cold_slot(params: Params, number: int) -> bool:
    """Whether a replica's dispatch ``number`` (from 0) belongs to the cold lane.

    q_cold of every batch_max consecutive dispatches, as evenly spread as whole numbers allow; or, per
    round, the last q_cold of a full batch.
    """
    if params.lanes == "per_round":
        return number % params.batch_max >= params.batch_max - params.q_cold
    due = (number + 1) * params.q_cold // params.batch_max
    paid = number * params.q_cold // params.batch_max
    return due > paid


def next_choice(world: World, params: Params, taken: Collection[str], number: int) -> Choice | None:
    """What dispatch ``number`` of a replica takes, when ``taken`` left earlier in the same round.

    ``world`` is the state at the round's start: scores and orders do not move within a round.
    """
    ranked = buckets(world, params)
    home = {t.request_id: bucket for bucket in ranked for t in bucket.tickets}
    if is_cold_slot(params, number):
        candidates = list(world.queue[: params.window_max])
        lane = Lane.COLD
    else:
        candidates = [ticket for bucket in ranked for ticket in bucket.tickets]
        lane = Lane.HOT
    for ticket in candidates:
        if ticket.request_id not in taken:
            bucket = home[ticket.request_id]
            order = aligned_order(world, params, ticket)
            return Choice(ticket.request_id, order, lane, bucket.signature, bucket.score)
    return None


def first_number(world: World, params: Params, replica: str) -> int:
    """The number of a round's first dispatch to a replica."""
    return 0 if params.lanes == "per_round" else world.dispatched.get(replica, 0)


def fixed_batch(
    world: World, params: Params, taken: Collection[str], number: int
) -> tuple[Choice, ...]:
    """The batch that begins with a replica's dispatch ``number``: batch_max choices at one moment."""
    batch: list[Choice] = []
    if params.lanes == "per_round":
        number = 0
    for place in range(params.batch_max):
        chosen = {*taken, *(choice.request_id for choice in batch)}
        choice = next_choice(world, params, chosen, number + place)
        if choice is not None:
            batch.append(choice)
    return tuple(batch)


def still_there(
    world: World, params: Params, batch: Iterable[Choice], taken: Collection[str]
) -> tuple[Choice, ...]:
    """What is left of a batch: who waits among the scanned and was not taken by another replica."""
    here = {t.request_id for t in world.queue[: params.window_max]}.difference(taken)
    return tuple(choice for choice in batch if choice.request_id in here)


def all_choices(world: World, params: Params, replica: str) -> list[Choice]:
    """The round's whole sequence if ``replica`` alone keeps taking."""
    choices: list[Choice] = []
    while True:
        number = first_number(world, params, replica) + len(choices)
        choice = next_choice(world, params, {c.request_id for c in choices}, number)
        if choice is None:
            return choices
        choices.append(choice)
