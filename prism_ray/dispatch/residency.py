"""What is known of a replica's KV-cache, and how far it can be trusted; keeps nothing itself.

``exact_residency`` holds what the engine says, ``predicted_residency`` what follows from dispatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from prism_ray.model import Atom
from prism_ray.scheduling import CacheView, Match


class ResidencyState(StrEnum):
    """How far a view of a cache can be trusted (architecture, "Many replicas")."""

    EXACT = "exact"
    """Every event of the engine's cache has arrived."""
    DEGRADED = "degraded"
    """Some are missing: a snapshot was asked for, and what is not known is predicted."""
    FALLBACK = "fallback"
    """The engine says nothing: all of it is predicted from what was sent."""


class Remembered(NamedTuple):
    """One thing that a cache holds, as it is kept over a restart.

    Predicted: an atom's id and tokens, and the row of the atom before it (-1: none). Exact: a path key
    and the offset in tokens at which its span ends; ``before`` is always -1.
    """

    before: int
    key: bytes
    tokens: int


class Residency(CacheView, Protocol):
    """A replica's cache as its seat sees it.

    ``tokens`` are the reusable tokens believed resident. A sent request's path is *computing* until
    its prefill ended: the engine matches only what was inserted before a batch was formed.
    """

    @property
    def state(self) -> ResidencyState: ...

    @property
    def tokens(self) -> int: ...

    def send(self, request_id: str, path: tuple[Atom, ...], room_tokens: int) -> Match:
        """Note that a request on ``path`` was sent; returns what it could match before.

        ``room_tokens`` is what the replica's running requests leave for reusable tokens that nobody
        holds right now.
        """

    def prefill_ended(self, request_id: str) -> None:
        """The request's path is inserted: later batches can match it."""

    def release(self, request_id: str) -> None:
        """The request left; what it did not finish computing is not there."""

    def clear(self) -> None:
        """The engine's cache was flushed: forget all that no request in flight holds."""

    def remember(self, limit: int) -> list[Remembered]:
        """What the cache holds, the newest first, at most ``limit`` rows."""

    def recall(self, rows: Sequence[Remembered], room_tokens: int) -> None:
        """Believe what was remembered, as older than all that is known here; truth replaces it."""

    def check_integrity(self) -> None:
        """Raise AssertionError unless every count equals a recount."""
