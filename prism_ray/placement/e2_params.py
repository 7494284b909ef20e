"""The parameters of E2: the paper's numbers, and every choice of ours as a named option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from prism_ray.placement.base import number, refuse_unknown

_AT_LEAST = {
    "window_s": 1e-3,
    "equal_cost": 1.0,
    "near_minimum": 1.0,
    "rebalance_ratio": 1.0,
    "replicate_ratio": 1.0,
    "decode_ratio": 1.0,
    "spill_ratio": 0.0,
    "spill_after": 0.0,
    "busy_share": 1e-3,
    "pace_loss": 1e-3,
    "prefill_tokens_per_s": 1.0,
}


PLUS: Mapping[str, Any] = {
    "equal_cost": 1e9,
    "rebalance": False,
    "decode_balance": False,
    "spill_after": 0.0,
    "spill_ratio": 5.0,
    "copy_shared": True,
    "residual": True,
    "recent_s": 10.0,
    "pace": True,
}
"""The placement ``e2+``: who is busy now decides, not the load of three minutes; replicas are paced."""


@dataclass(frozen=True, slots=True)
class E2Params:
    """Parameters of E2. Raises ValueError naming the parameter that is ill-typed or out of range.

    Attributes:
        window_s: H, how long a request counts as load and a prefix as shared.
        equal_cost: candidates whose L + M + P is at most so many times the least are as good; among
            them the one where the request is done first is chosen (ours).
        near_minimum: a replica that holds nothing of a prompt may be spilled to if what waits there
            is at most so many times the least (ours).
        rebalance, rebalance_ratio: Th; an exploiting request that would go to the heaviest replica
            goes to the lightest while their loads differ by more. Off with ``rebalance`` false.
        replicate, replicate_ratio: a prefix whose queueing time grew so many times within H gets
            another replica; one whose load needs fewer than hold it is sent to fewer.
        decode_balance, decode_ratio: ImbalR over the mean decode share, of two replicas over the other's;
            exploring requests go to a replica above it.
        spill, spill_ratio: a request leaves the replicas that hold its prefix when it would be done
            sooner elsewhere, what it computes there again counted so many times more (ours).
        spill_after: it has to wait longer than so many times its own prefill first (ours).
        explore_share, explore_until: a replica that joins others at work gets this share of the
            exploring requests until it has served so many (ours).
        busy_share: above this part of its time a replica counts as busy: below it nothing is
            rebalanced, and one holder of a prefix is enough (ours).
        copy_shared: what a spilled request computes again counts less, the more others use the prefix:
            ``spill_ratio`` times (its holders + 1) / (its uses within H), at most once, as long as it
            keeps more replicas busy than hold it (ours).
        residual: a wait is less by what is done of the prefill under way (ours).
        recent_s: a prefix needs as many holders as its load within H or its rate over about so many
            seconds keeps busy, whichever are more, and nothing is rebalanced to where the wait is
            longer; 0: load within H only (ours).
        pace, pace_loss: a replica has only as many requests at once as are needed for the steps of an
            answer, shared by all of them, to take at most so many times its prefill (ours).
        prefill_tokens_per_s, decode_token_s: costs until replicas report (ours).
        shelf_nodes_max, uses_max: bounds of the forest.
    """

    window_s: float = 180.0
    equal_cost: float = 1.5
    near_minimum: float = 1.1
    rebalance: bool = True
    rebalance_ratio: float = 1.5
    replicate: bool = True
    replicate_ratio: float = 2.0
    decode_balance: bool = True
    decode_ratio: float = 2.0
    spill: bool = True
    spill_ratio: float = 10.0
    spill_after: float = 1.0
    explore_share: float = 0.05
    explore_until: int = 50
    busy_share: float = 0.2
    residual: bool = False
    recent_s: float = 0.0
    copy_shared: bool = False
    pace: bool = False
    pace_loss: float = 0.1
    prefill_tokens_per_s: float = 10_000.0
    decode_token_s: float = 0.001
    shelf_nodes_max: int = 32_768
    uses_max: int = 262_144

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            if isinstance(type(self).__dataclass_fields__[name].default, bool):
                if not isinstance(value, bool):
                    raise ValueError(f"{name}: expected true or false, got {value!r}")
            else:
                number(values, name, 0.0, _AT_LEAST.get(name, 0.0))
        if self.explore_share > 1:
            raise ValueError(f"explore_share: expected at most 1, got {self.explore_share}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> E2Params:
        """Build from a config section; an unknown name raises ValueError."""
        refuse_unknown("e2", values, [f.name for f in fields(cls)])
        return cls(**values)
