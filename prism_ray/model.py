"""The nouns that cross rooms: what a prompt is made of, what waits, what was decided.

Frozen values only; nothing here schedules, tokenizes or talks to anybody. Times are seconds on the
monotonic clock of whoever holds the value, lengths are tokens, identities are keyed digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from prism_ray.pickling import pickled_by_fields

SegmentId = bytes
"""Keyed digest of (tenant, exact text) of one reusable piece of a prompt; compared, never decoded."""

Order = tuple[int, ...]
"""A serialization of a skeleton: indexes into ``Skeleton.segments`` in the order they are written."""

Signature = tuple[SegmentId, ...]
"""Ordered bucket signature (paper, eq. 10): a tuple, never a concatenated string."""


class SegmentKind(StrEnum):
    """Where a segment came from."""

    SYSTEM = "system"
    DOCUMENT = "document"
    TEXT = "text"
    TOOL = "tool"
    TURN = "turn"


class Lane(StrEnum):
    """Which share of the dispatches a request left by (paper, "Submission order and prediction")."""

    HOT = "hot"
    COLD = "cold"


class Atom(NamedTuple):
    """An indivisible name for a run of tokens: equal ids mean equal tokens. Paths are tuples of atoms."""

    id: bytes
    tokens: int


NO_GAP = Atom(b"", 0)


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Segment:
    """One reusable piece of a prompt.

    ``run`` numbers the group of segments that may trade places with each other; None means that the
    client did not allow moving it. ``label`` is the client's own bounded name, for people only.
    """

    id: SegmentId
    tokens: int
    kind: SegmentKind = SegmentKind.DOCUMENT
    run: int | None = None
    label: str = ""


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Skeleton:
    """A prompt as the control plane knows it (paper, eq. 1): system, reusable segments, private rest.

    ``gaps[j]`` is the fixed text right before slot j (a separator, a turn's header): it belongs to
    the slot and stays when segments trade places. ``private_tokens`` counts all after the last slot.
    """

    system: Segment | None
    segments: tuple[Segment, ...]
    gaps: tuple[Atom, ...]
    private_tokens: int

    def __post_init__(self) -> None:
        if len(self.gaps) != len(self.segments):
            raise ValueError(
                f"{len(self.segments)} segments need as many gaps, got {len(self.gaps)}"
            )
        if self.private_tokens < 0 or any(s.tokens < 0 for s in self.segments):
            raise ValueError("token counts cannot be negative")

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt; the same for every allowed order."""
        system = self.system.tokens if self.system else 0
        return (
            system
            + sum(s.tokens for s in self.segments)
            + sum(g.tokens for g in self.gaps)
            + self.private_tokens
        )

    @property
    def global_slots(self) -> int:
        """Slots of the fixed tool schemas that lead: with the system prefix they are what all prompts
        of an application share (its policy and its tools)."""
        for slot, segment in enumerate(self.segments):
            if segment.kind is not SegmentKind.TOOL or segment.run is not None:
                return slot
        return len(self.segments)

    @property
    def global_tokens(self) -> int:
        """Length of the system prefix and the fixed tool schemas behind it."""
        system = self.system.tokens if self.system else 0
        slots = range(self.global_slots)
        return system + sum(self.gaps[n].tokens + self.segments[n].tokens for n in slots)

    @property
    def native_order(self) -> Order:
        return tuple(range(len(self.segments)))

    @property
    def runs(self) -> tuple[tuple[int, ...], ...]:
        """Slots that may trade segments, one tuple per run of at least two, in slot order."""
        slots: dict[int, list[int]] = {}
        for slot, segment in enumerate(self.segments):
            if segment.run is not None:
                slots.setdefault(segment.run, []).append(slot)
        return tuple(tuple(s) for s in slots.values() if len(s) > 1)

    def check_order(self, order: Sequence[int]) -> None:
        """Raise ValueError unless ``order`` permutes segments only inside their runs."""
        if sorted(order) != list(range(len(self.segments))):
            raise ValueError(f"{tuple(order)} is no permutation of {len(self.segments)} segments")
        for slot, index in enumerate(order):
            if slot != index and (
                self.segments[index].run is None
                or self.segments[index].run != self.segments[slot].run
            ):
                raise ValueError(f"segment {index} may not move to slot {slot}")

    def path(self, order: Order) -> tuple[Atom, ...]:
        """The reusable front of the prompt under ``order``, without the private rest."""
        atoms = [] if self.system is None else [Atom(self.system.id, self.system.tokens)]
        for slot, index in enumerate(order):
            if self.gaps[slot].tokens:
                atoms.append(self.gaps[slot])
            segment = self.segments[index]
            atoms.append(Atom(segment.id, segment.tokens))
        return tuple(atoms)

    def boundaries(self, order: Order) -> tuple[int, ...]:
        """Token offsets at which anchors go: after the system prefix, after each slot, at the end."""
        return tuple(self._boundaries(order))

    def _boundaries(self, order: Order) -> Iterator[int]:
        offset = 0
        if self.system is not None:
            offset = self.system.tokens
            yield offset
        for slot, index in enumerate(order):
            offset += self.gaps[slot].tokens + self.segments[index].tokens
            yield offset
        yield offset + self.private_tokens


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Ticket:
    """A request as it waits: digests, exact token counts and limits, never the text.

    ``arrival_s`` is on the scheduler's clock and survives re-submission; ``attempt`` counts
    submissions of the same request; ``ingress`` is the incarnation of the ingress that holds the body.
    """

    request_id: str
    skeleton: Skeleton
    arrival_s: float
    max_new_tokens: int = 0
    attempt: int = 0
    ingress: str = ""
    tenant: bytes = b""
    deadline_s: float | None = None


class Pick(NamedTuple):
    """What a policy wants dispatched next, and why. (A tuple: one is made per dispatch.)"""

    ticket: Ticket
    order: Order
    lane: Lane
    signature: Signature = ()
    score: float = 0.0
    reason: str = ""


class Demand(NamedTuple):
    """One row of a demand table: P̂ of a segment and, optionally, its place in the planned order.

    ``next_use`` is the position of the first planned request that uses the segment, -1 if unknown.
    """

    segment: SegmentId
    priority: float
    next_use: int = -1


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class DemandTable:
    """What DART is told with a plan (paper, eq. 13): versioned and bounded, highest P̂ first."""

    version: int
    rows: tuple[Demand, ...] = ()


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One request of a plan, in the order in which the replica must submit."""

    request_id: str
    attempt: int
    uncached_tokens: int


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Plan:
    """One ordered batch for one replica; ``version`` counts plans of this QAS epoch to this replica."""

    replica: str
    epoch: str
    version: int
    entries: tuple[PlanEntry, ...]
    demand: DemandTable


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a ticket: where the request goes, in which order it is written, and why."""

    request_id: str
    attempt: int
    epoch: str
    replica: str
    plan_version: int
    position: int
    order: Order
    lane: Lane
    queue_s: float
    predicted_cached_tokens: int
    signature: Signature = ()
    score: float = 0.0
    reason: str = ""


class Outcome(StrEnum):
    """How a request left the system; every request has exactly one."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Completion:
    """What became of a dispatched request, as its replica saw it."""

    request_id: str
    attempt: int
    outcome: Outcome
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """What a replica can hold: fixed while its engine lives.

    ``prefill_ahead_tokens`` is the credit ceiling: predicted uncached tokens that may be sent and not
    yet prefilled (2 x chunked_prefill_size). ``tells_cache``: its engine says what its cache holds.
    """

    pool_tokens: int
    max_running: int
    prefill_ahead_tokens: int
    page_size: int = 1
    context_length: int = 0
    tells_cache: bool = False


class InFlight(NamedTuple):
    """A request that a replica holds: sent to it, and possibly past its prefill."""

    request_id: str
    attempt: int
    uncached_tokens: int
    prefilled: bool


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """A replica's absolute state: the numbers that correct what events let drift."""

    replica: str
    incarnation: str
    sequence: int
    running: int
    waiting: int
    pool_used_tokens: int
    prompt_tokens_total: int
    cached_tokens_total: int
    output_tokens_total: int
    evicted_tokens_total: int
    prefill_tokens_per_s: float
    in_flight: tuple[InFlight, ...] = field(default=())
