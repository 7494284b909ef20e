"""The parameters of retention, by name: what ``retention.params`` of a config may say. No cache here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

ANCHOR_RANKS = ("paths", "demand")


@dataclass(frozen=True, slots=True)
class RetentionParams:
    """What every retention strategy is told; one that protects nothing ignores it.

    Attributes:
        protect_anchors: f, the anchors that are protected beside system prefixes (choice A8).
        protect_share: the share of the pool that protection may take at most.
        anchor_rank: anchors of equal demand by the waiting requests whose paths run through them, then
            shallow first ("paths"), or by demand alone, equals oldest first ("demand") (choice A10).
    """

    protect_anchors: int = 20
    protect_share: float = 0.5
    anchor_rank: str = "paths"

    def __post_init__(self) -> None:
        anchors, share = self.protect_anchors, self.protect_share
        if isinstance(anchors, bool) or not isinstance(anchors, int) or anchors < 0:
            raise ValueError(
                f"protect_anchors: expected a whole number of at least 0, got {anchors!r}"
            )
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not 0 <= share <= 1:
            raise ValueError(f"protect_share: expected a number from 0 to 1, got {share!r}")
        if self.anchor_rank not in ANCHOR_RANKS:
            expected = " or ".join(ANCHOR_RANKS)
            raise ValueError(f"anchor_rank: expected {expected}, got {self.anchor_rank!r}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RetentionParams:
        """Build from a config section; an unknown name, type or value raises ValueError."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"retention has no parameter {name!r}; known: {', '.join(known)}")
        return cls(**values)
