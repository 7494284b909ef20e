"""A replica that notes which requests its engine admitted, in order."""

from __future__ import annotations

from typing import Any

from prism_ray.engine.base import PrefillStarted
from prism_ray.serving.replica import Replica


class AdmissionsReplica(Replica):
    """Notes the request id of every admission of a first choice."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        self.admitted: list[str] = []
        await super().__init__(config_json)
        note = self._on_engine_event

        def noting(event: Any) -> None:
            choice = self._choices.get(event.request_id)
            if isinstance(event, PrefillStarted) and choice is not None and choice.index == 0:
                self.admitted.append(choice.held.key[1])
            note(event)

        self._on_engine_event = noting  # type: ignore[method-assign]

    async def admissions(self) -> list[str]:
        return self.admitted
