"""What ingress, QAS actor and replica say to each other. Values only; Ray carries them.

Every message names the incarnation of its sender or the epoch of its QAS, so that what arrives late
from a dead one can be told and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from prism_ray.engine.base import Endpoint
from prism_ray.model import Completion, Plan, ReplicaCapacity, ReplicaSnapshot
from prism_ray.pickling import pickled_by_fields
from prism_ray.serving.line import LineAddress

DIRECT_EPOCH = ""
"""Epoch of a decision that an ingress took by itself while no QAS answered."""


@dataclass(frozen=True, slots=True)
class QasAddress:
    """Where a QAS lives: its Ray actor name, which of its lives this is, and where it has lines.

    Without a line's address everything is said by Ray actor calls.
    """

    actor_name: str
    epoch: str
    line: LineAddress | None = None


class SubmitError(StrEnum):
    """Why a ticket got no decision."""

    QUEUE_FULL = "queue_full"
    NO_REPLICA = "no_replica"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    STALE_ATTEMPT = "stale_attempt"
    FORGOTTEN = "forgotten"
    """Its ingress was silent for too long. One that is alive after all submits anew."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The answer to a ticket that will not be dispatched."""

    error: SubmitError
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class QasStatus:
    """Answer to an ingress's heartbeat. ``context_length`` and ``pool_tokens`` are the least of all.

    ``replicas`` are those that requests are decided for; ``attached`` also those that get nothing new
    (leaving, silent).
    """

    epoch: str
    replicas: tuple[str, ...]
    waiting: int
    context_length: int
    pool_tokens: int
    attached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """A replica offers itself to a QAS.

    ``incarnation`` names this life of the line between the two: the engine's, and how often the
    replica has said hello. Plans are counted anew in every life.
    """

    replica: str
    incarnation: str
    model: str
    capacity: ReplicaCapacity


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class PlanDelivery:
    """What a replica's poll brings: plans it has not acknowledged, and ids that need no submission."""

    epoch: str
    plans: tuple[Plan, ...] = ()
    voided: tuple[tuple[str, int], ...] = ()


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prompt of this attempt is in the cache; credit returns."""

    request_id: str
    attempt: int
    prompt_tokens: int
    cached_tokens: int


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class EntryRefused:
    """A planned request that the replica did not submit (see ``Refusal``)."""

    request_id: str
    attempt: int
    reason: str


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Report:
    """One numbered message of a replica's event channel; ``plan_version`` is the last plan it read.

    Sent again under the same number until it has arrived: QAS takes each number once.
    """

    replica: str
    incarnation: str
    sequence: int
    plan_version: int
    prefilled: tuple[PrefillDone, ...] = ()
    completed: tuple[Completion, ...] = ()
    refused: tuple[EntryRefused, ...] = ()
    snapshot: ReplicaSnapshot | None = None
    cache: tuple[bytes, ...] = ()
    """What the engine said of its cache, as it said it (``cache_news``)."""
    engine: tuple[tuple[str, float], ...] = ()
    """With a snapshot: what the engine counts, by its own names (``EngineLoad.extra``)."""


class Heard(IntEnum):
    """What became of a report."""

    UNKNOWN = 0
    """This QAS does not know the replica in its present life: it must say hello."""
    TAKEN = 1
    SNAPSHOT_WANTED = 2
    """Taken; and the engine should name everything that it has cached, for something is not known."""


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Told:
    """The answer to a report; to one with a snapshot also the replica's share of what waits.

    ``queued_tokens``: prompt tokens that wait in the window for this replica.
    """

    heard: Heard
    queued_tokens: int | None = None


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Body:
    """A request's text and tokens on their way to the replica that was decided for it."""

    request_id: str
    attempt: int
    epoch: str
    plan_version: int
    endpoint: Endpoint
    body: dict[str, Any]
    prompt_ids: list[int]
    boundaries: tuple[int, ...] = ()
    segments: tuple[bytes | None, ...] = ()
    path_keys: tuple[bytes | None, ...] = ()
    system_tokens: int = 0
    uncached_tokens: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """First message of an answer that does not begin at once: the engine has the request."""

    replica: str


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Only message of an answer: the replica did not submit; the ingress asks QAS again at once."""

    reason: str


@dataclass(frozen=True, slots=True)
class EngineSaysNo:
    """Only message of an answer: the engine refuses this body, wherever it is sent."""

    status: int
    body: dict[str, Any]


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Payloads:
    """OpenAI objects that were ready together; the last may bring the answer's end along."""

    items: tuple[dict[str, Any], ...]
    answered: Answered | None = None


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds since the replica got the body, on its own clock; None for what never happened."""

    prefill_started_s: float | None = None
    prefill_ended_s: float | None = None
    first_payload_s: float | None = None


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Answered:
    """Last message of an answer, or of its last message a part."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    timings: Timings = field(default_factory=Timings)


Answer = Accepted | NotTaken | EngineSaysNo | Payloads | Answered
