"""A replica that notes which requests its engine admitted, in order, and when."""

from __future__ import annotations

import time
from typing import Any

from prism_ray.engine.base import PrefillStarted
from prism_ray.serving.replica import Replica


class AdmissionsReplica(Replica):
    """Notes the request id and the wall time of every admission of a first choice."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        self.admitted: list[tuple[str, float]] = []
        await super().__init__(config_json)
        note = self._on_engine_event

        def noting(event: Any) -> None:
            choice = self._choices.get(event.request_id)
            if isinstance(event, PrefillStarted) and choice is not None and choice.index == 0:
                self.admitted.append((choice.held.key[1], time.time()))
            note(event)

        self._on_engine_event = noting  # type: ignore[method-assign]

    async def admissions(self) -> list[str]:
        return [request_id for request_id, _ in self.admitted]

    async def admission_times_unix_s(self) -> list[float]:
        return [at_unix_s for _, at_unix_s in self.admitted]
