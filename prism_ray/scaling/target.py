"""The number of replicas for the work that there is: one pure function. Starts and stops nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil, isfinite

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ReplicaWork:
    """What one replica has to do.

    Attributes:
        queued_tokens: its share of the window: uncached prompt tokens that wait to be sent.
        owed_tokens: tokens sent to it and not prefilled: its credit ceiling less its credit.
        prefill_tokens_per_s: how fast it prefills uncached tokens while it does; 0 until measured.
        busy: the larger of two shares of the last seconds, 0 to 1: the time in which it owed a
            prefill, and its slots that were taken.
    """

    queued_tokens: float
    owed_tokens: float
    prefill_tokens_per_s: float
    busy: float


@dataclass(frozen=True, slots=True)
class Targets:
    """Between which loads the number of replicas stays as it is. Raises ValueError for nonsense.

    Attributes:
        least, most: bounds of the number, at least 1.
        work_high_s: more waiting prefill than this per replica, in seconds of its work: add some.
        work_low_s: fewer replicas must not have more than this each; below ``work_high_s``.
        busy_high: a replica that is busy for a larger share of its time needs help, at most 1.
        busy_low: fewer replicas must not be busier than this; below ``busy_high``.
    """

    least: int = 1
    most: int = 1
    work_high_s: float = 2.0
    work_low_s: float = 0.5
    busy_high: float = 0.8
    busy_low: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{field.name}: expected a number above 0, got {value!r}")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"most: expected at least {self.least}, got {self.most}")
        for low, high in (("work_low_s", "work_high_s"), ("busy_low", "busy_high")):
            if getattr(self, low) >= getattr(self, high):
                limit, value = getattr(self, high), getattr(self, low)
                raise ValueError(f"{low}: expected less than {high} ({limit}), got {value}")
        if self.busy_high > 1:
            raise ValueError(f"busy_high: expected at most 1, got {self.busy_high}")


def replicas_wanted(
    replicas: Sequence[ReplicaWork | None], asked_for: int, targets: Targets
) -> int:
    """The number of replicas to have; within ``targets``' bounds.

    ``replicas``: those that run, None for one of which nothing is known (yet). ``asked_for``: how
    many there should be by the last word.

    Work and busy shares are totals, so they say how many replicas they need at the high marks (as few
    as bearable) and at the low marks (as many as useful). A number between the two stays: what a
    change of it does to the load of each cannot call for the opposite change.

    Two cases wait. While replicas that were asked for do not run yet, no more are asked for: what
    piles up meanwhile is theirs. While nothing is known of one that runs, none is given up.
    """
    known = [replica for replica in replicas if replica is not None]
    if not known:
        return _within(asked_for, targets)
    work_s, busy = _work_s(known), sum(replica.busy for replica in known)
    bearable = _up(max(work_s / targets.work_high_s, busy / targets.busy_high))
    useful = _up(max(work_s / targets.work_low_s, busy / targets.busy_low))
    wanted = min(max(asked_for, bearable), useful)
    if len(replicas) < asked_for:
        wanted = min(wanted, asked_for)
    if len(known) < len(replicas):
        wanted = max(wanted, asked_for)
    return _within(wanted, targets)


def _work_s(known: Sequence[ReplicaWork]) -> float:
    """Seconds that one replica of mean speed would need for all that waits; 0 while none is known."""
    rates = [r.prefill_tokens_per_s for r in known if r.prefill_tokens_per_s > 0]
    if not rates:
        return 0.0
    tokens = sum(r.queued_tokens + r.owed_tokens for r in known)
    return tokens * len(rates) / sum(rates)


def _up(replicas: float) -> int:
    return ceil(replicas - _ROUNDING)


def _within(count: int, targets: Targets) -> int:
    return min(max(count, targets.least), targets.most)
