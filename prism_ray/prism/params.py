"""The parameters of ``prism``: each ingredient with its default, and off by a value of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from prism_ray.parameters import at_least, checked

ORDERS = ("auto", "arrival", "match")


@dataclass(frozen=True, slots=True)
class PrismParams:
    """Raises ValueError naming the parameter that is ill-typed or out of range.

    Attributes:
        plan: write segments in planned orders; off: as the client wrote them.
        share: plan all waiting requests together; off: each by itself along what is resident.
        pioneer: what is being computed for one request is not computed again for another meanwhile.
        order: who goes first besides those overdue: the oldest ("arrival"), the longest resident
            prefix ("match"), or "auto": "arrival" if at least half of the window can be planned, since
            planned prompts share whoever goes first, or while the cache keeps what comes again; "match"
            if neither.
        overdue_share: part of the computed tokens that goes to overdue requests; 0: none by right.
        overdue_after_tokens: D0, in tokens computed since arrival beyond what waited then.
        window_max: oldest waiting requests that are planned.
        hints: tell retention when what is resident is used next.
        table_rows_max: most rows of a demand table.
        half_life: arrivals in which the popularity of a segment halves; dispatches in which the
            worth of a place does take twice as long.
    """

    plan: bool = True
    share: bool = True
    pioneer: bool = True
    order: str = "auto"
    overdue_share: float = 0.25
    overdue_after_tokens: int = 4096
    window_max: int = 128
    hints: bool = True
    table_rows_max: int = 1024
    half_life: int = 1000

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order: expected one of {', '.join(ORDERS)}, got {self.order!r}")
        if not 0 <= self.overdue_share <= 1:
            raise ValueError(f"overdue_share: expected 0 to 1, got {self.overdue_share}")
        for name in ("overdue_after_tokens", "table_rows_max"):
            at_least(name, getattr(self, name), 0)
        for name in ("window_max", "half_life"):
            at_least(name, getattr(self, name), 1)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any] | None) -> PrismParams:
        """Build from a config section; unknown names and wrong types raise ValueError."""
        defaults = {field.name: field.default for field in fields(cls)}
        given = checked("prism", values, defaults)
        return cls(**{name: getattr(given, name) for name in defaults})
