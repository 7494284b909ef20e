"""The parameters of QAS: the paper's numbers and every choice of ours, as named options.

Defaults are the paper's where it gives a number, else those of the choices A1-A21
(docs/decisions.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_CHOICES: dict[str, tuple[str, ...]] = {
    "priority": ("weighted", "lexicographic"),
    "bucket_segments": ("union", "signature"),
    "hot_batch": ("bucket", "running"),
    "front_order": ("priority", "original"),
    "realign": ("round", "arrival"),
    "lanes": ("rate", "per_round"),
    "batch": ("credit", "fixed"),
    "active": ("dispatched", "running"),
    "table_taken": ("before", "after"),
    "signature_segments": ("non_global", "any"),
}
_FLAGS = ("pioneer", "predict_next")
_REALS = ("w_active", "w_next", "w_global", "alpha_size", "beta_util")
_LEAST: dict[str, int] = {
    "f_front": 0,
    "kappa": 1,
    "q_cold": 0,
    "batch_max": 1,
    "window_max": 1,
    "table_rows_max": 0,
    "memory_requests": 0,
    "pioneer_look_ahead": 0,
}
LEXICOGRAPHIC_BATCH_MAX = 2**11 - 1
"""Largest ``batch_max`` under which N cannot reach into A's digits (see priority.py)."""


@dataclass(frozen=True, slots=True)
class QasParams:
    """Parameters of QAS. Raises ValueError naming the parameter that is ill-typed or out of range.

    Attributes:
        w_active, w_next, w_global: weights of eq. 9.
        f_front: segments aligned to the front of each run of a skeleton.
        kappa: segments in a bucket signature (eq. 10).
        alpha_size, beta_util: weights of bucket size and bucket utility (eq. 12).
        q_cold: cold dispatches in every ``batch_max`` consecutive ones to a replica.
        batch_max: B_max, the run of dispatches over which lanes are shares (A6).
        priority: the paper's weighted sum, or the strict order (A, N, G).
        bucket_segments: R_b of eq. 11 is the union over a bucket's requests, or its signature (A1).
        signature_segments: signatures are of segments behind the global prefix (system, fixed tool
            schemas) as long as there are any, or of any segment. Retrieval prompts have no tool schemas,
            so it matters to agents only (paper, "hot reusable agent segments").
        hot_batch: B_hot_b is the bucket's own first requests, or those after the running hot batch
            that better buckets already filled (A2).
        front_order: order inside the front block: by priority, or as the client wrote it (A3).
        realign: align each round while a request waits, or once at its arrival (A4).
        batch: each dispatch takes the best of the moment when credit admits it, or a replica's next
            ``batch_max`` requests and their orders are chosen together and go before any other (A6).
        active: a request is active from its dispatch, or from the end of its prefill, which is when
            the scheduler hears that the engine runs it; until then it counts as queued (A12).
        lanes: cold slots at a rate that survives rounds, or last in each round (A7).
        pioneer: of requests that share an uncached front one goes first (A16).
        pioneer_look_ahead: requests that may be held back in a round for each replica; beyond them
            the first in line goes, whatever it shares. Bounds what the rule costs.
        window_max: oldest queued requests that are aligned and bucketed; None for all (A21).
        predict_next: the demand table also counts the predicted next batch (A17).
        table_taken: take the demand table before or after the batch moves from G to A (A18).
        table_rows_max: most rows of a demand table.
        memory_requests: a segment keeps its rank while it is among a replica's last so many
            dispatches, since it may be resident there (A19); at least batch_max count.
    """

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
    signature_segments: str = "non_global"
    hot_batch: str = "bucket"
    front_order: str = "priority"
    realign: str = "round"
    batch: str = "credit"
    active: str = "dispatched"
    lanes: str = "rate"
    pioneer: bool = False
    pioneer_look_ahead: int = 64
    window_max: int | None = 1024
    predict_next: bool = True
    table_taken: str = "before"
    table_rows_max: int = 128
    memory_requests: int = 2048

    def __post_init__(self) -> None:
        for name in _REALS:
            _check_real(name, getattr(self, name))
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not (name == "window_max" and value is None):
                _check_whole(name, value, least)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected true or false, got {getattr(self, name)!r}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                expected = " or ".join(choices)
                raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)!r}")
        if self.q_cold > self.batch_max:
            raise ValueError(f"q_cold: {self.q_cold} is more than batch_max {self.batch_max}")
        if self.priority == "lexicographic" and self.batch_max > LEXICOGRAPHIC_BATCH_MAX:
            raise ValueError(f"batch_max: at most {LEXICOGRAPHIC_BATCH_MAX} if lexicographic")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> QasParams:
        """Build from a config section; an unknown name raises ValueError."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(
                    f"qas has no parameter {name!r}; known: {', '.join(sorted(known))}"
                )
        return cls(**values)

    @property
    def hot_max(self) -> int:
        """Requests of a run of ``batch_max`` dispatches that leave by the hot lane."""
        return self.batch_max - self.q_cold


def _check_real(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: expected a number, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name}: expected a finite number of at least 0, got {value!r}")


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: expected a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")
