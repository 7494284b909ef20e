"""The policy ``front-alignment``: the paper's re-serialization alone, in arrival order (choice A14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from prism_ray.qas import Qas, QasParams
from prism_ray.scheduling import POLICIES


@POLICIES.register("front-alignment")
class FrontAlignment(Qas):
    """``qas`` without its scheduling and its hints: every dispatch is the oldest request's.

    Takes the parameters of ``qas`` that concern alignment; the lanes' and tables' are set here.
    """

    retention: ClassVar[str] = "lru"

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        given = dict(params or {})
        for name in ("q_cold", "lanes", "pioneer", "predict_next", "table_taken", "table_rows_max"):
            if name in given:
                raise ValueError(f"front-alignment has no parameter {name!r}")
        aligned = QasParams.from_mapping(given)
        super().__init__(
            replace(aligned, q_cold=aligned.batch_max, table_rows_max=0, predict_next=False)
        )

    def describe(self, top: int = 20) -> dict[str, Any]:
        """See ``Qas.describe``."""
        return super().describe(top) | {"policy": "front-alignment"}
