"""What a placement is: the two protocols, what a choice says, and the registry. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from prism_ray.model import Atom, ReplicaCapacity, Ticket
from prism_ray.registry import Registry
from prism_ray.scheduling import CacheView

Path = tuple[Atom, ...]


class CheckpointError(ValueError):
    """Plain data that should be a checkpoint and is none."""


class UnknownCheckpoint(CheckpointError):
    """A checkpoint of a version that this code does not read."""


class ReplicaLoad(NamedTuple):
    """A replica with credit: predicted tokens left to prefill, requests sent, dispatches ever."""

    replica: str
    load_tokens: int
    running: int
    dispatched: int


class Choice(NamedTuple):
    """Where a request goes and why.

    ``kind`` is the rule that decided, one of a few fixed words per placement (fit for a metric's
    label); ``numbers`` are what it compared, tokens and seconds by name.
    """

    replica: str
    kind: str
    numbers: Mapping[str, float | int | str] = {}

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {_short(value)}" for name, value in self.numbers.items())
        return f"{self.kind} to {self.replica}" + (f" ({numbers})" if numbers else "")


def _short(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Turns(Protocol):
    """A placement that knows no request: any replica with credit may take whatever comes next."""

    def choose(self, ready: Sequence[ReplicaLoad]) -> Choice:
        """The replica that gets the next dispatch; ``ready`` is never empty, sorted by name.

        Being chosen is no dispatch yet: there may be nothing that it can take. So this changes
        nothing; ``took`` says what became of it.
        """

    def took(self, replica: str) -> None:
        """The replica got a dispatch."""


@runtime_checkable
class Homing(Protocol):
    """A placement that gives every request a home: only that replica is offered it.

    The caller tells it of everything that happens to a request it placed, once each and in order:
    ``place`` (again, if it moves while it waits), ``sent``, ``prefilled``, ``released``. What is not
    going to be sent any more is ``released`` too. Times are seconds of one clock that never goes back.
    """

    def join(
        self, replica: str, capacity: ReplicaCapacity, cache: CacheView | None, now_s: float
    ) -> None:
        """A replica can be chosen; ``cache`` says what is known of its KV-cache."""

    def leave(self, replica: str) -> None:
        """A replica is gone with all that was placed there; unknown names are ignored."""

    def drain(self, replica: str, draining: bool) -> None:
        """A replica gets nothing new for now."""

    def place(self, ticket: Ticket, path: Path, now_s: float) -> Choice:
        """Choose a home for a request that would be written as ``path``.

        ValueError if there is none or the request is placed already.
        """

    def move(self, ticket: Ticket, path: Path, ready: Sequence[str], now_s: float) -> Choice | None:
        """The home of a waiting request has no credit: another of ``ready``, or None to wait on."""

    def sent(self, request_id: str, path: Path, cached_tokens: int, now_s: float) -> None:
        """The request was dispatched to its home, written as ``path``, so much of it cached there."""

    def prefilled(self, request_id: str, now_s: float) -> None:
        """The request's prefill ended; unknown ids are ignored."""

    def released(self, request_id: str, output_tokens: int | None, now_s: float) -> None:
        """The request is gone; tokens generated if it finished. Unknown ids are ignored."""

    def flushed(self, replica: str) -> None:
        """The replica's cache was emptied."""

    def homes(self) -> dict[str, str]:
        """The replica of each request that is placed and not released."""

    def describe(self, top: int = 20) -> dict[str, Any]:
        """State for people, JSON-ready, at most ``top`` rows a list.

        ``decisions`` counts the choices of its life by ``kind``.
        """

    def check_integrity(self) -> None:
        """Raise AssertionError if a count differs from a recount."""


@runtime_checkable
class Pacing(Protocol):
    """A placement that bounds how many requests are at a replica at once, below what it could take."""

    @property
    def slots(self) -> int | None:
        """Requests sent to a replica and not ended, at least 1; None: as many as it takes. Changes
        with ``Homing.released`` only."""


Placement = Turns | Homing
PLACEMENTS: Registry[Callable[[Mapping[str, Any]], Placement]] = Registry("placement")


def make_placement(name: str, params: Mapping[str, Any] | None = None) -> Placement:
    """Build the placement registered as ``name``. Raises UnknownName or ValueError."""
    return PLACEMENTS[name](params or {})


def placements_of(placement: Placement) -> dict[str, int]:
    """Choices of a placement's life by kind; empty for one that only gives turns."""
    if not isinstance(placement, Homing):
        return {}
    decisions: dict[str, int] = placement.describe(0)["decisions"]
    return decisions


def number(params: Mapping[str, Any], name: str, default: float, least: float = 0.0) -> float:
    """The parameter ``name``: a finite number of at least ``least``, else ValueError."""
    value = params.get(name, default)
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    if not fine or not least <= value < float("inf"):
        raise ValueError(f"{name}: expected a number of at least {least:g}, got {value!r}")
    return float(value)


def refuse_unknown(placement: str, params: Mapping[str, Any], known: Sequence[str]) -> None:
    """ValueError naming parameters that the placement does not have."""
    unknown = sorted(set(params) - set(known))
    if unknown and not known:
        raise ValueError(f"placement {placement!r} takes no parameters, got {unknown}")
    if unknown:
        has = f"known: {', '.join(known)}"
        raise ValueError(f"placement {placement!r} has no parameter {', '.join(unknown)}; {has}")
