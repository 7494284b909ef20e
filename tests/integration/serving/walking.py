"""A replica whose engine's cache can be walked, and what QAS believes to be in that cache."""

from __future__ import annotations

import asyncio
from typing import Any

import ray

from prism_ray import cache_news
from prism_ray.dispatch import ExactResidency, ResidencyState
from prism_ray.serving.qas_link import QAS_ACTOR
from prism_ray.serving.replica import Replica

Spans = dict[bytes, tuple[int, int]]
"""Start and end of what is cached, by path key."""


class WalkingReplica(Replica):
    """Has the engine's tree walked when asked, and tells QAS nothing of what was found."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        self._walked: ExactResidency | None = None
        await super().__init__(config_json)

    async def walk(self) -> Spans:
        """What a walk of the real tree finds now."""
        walked = self._walked = ExactResidency()
        await self._engine.snapshot_cache()
        async with asyncio.timeout(10):
            while walked.wants_snapshot or walked.state is not ResidencyState.EXACT:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        self._walked = None
        return walked.spans()

    def _cache_told(self, message: bytes) -> None:
        news = cache_news.decode(message)
        if self._walked is not None:
            self._walked.apply(news)
            message = cache_news.encode(news._replace(spans=(), part=0, parts=0))
        super()._cache_told(message)


def believed() -> dict[str, tuple[str, Spans]]:
    """By replica: the state of QAS's view of its cache, and what QAS holds resident there."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    (name,) = [a["name"] for a in actors if a["name"].endswith(f"::{QAS_ACTOR}")]
    qas = ray.get_actor(name, namespace="serve")
    found: dict[str, tuple[str, Spans]] = ray.get(qas.__ray_call__.remote(_residency), timeout=30)
    return found


def _residency(qas: Any) -> dict[str, tuple[str, Spans]]:
    seats = qas._dispatcher.seats
    return {name: (str(s.residency.state), s.residency.spans()) for name, s in seats.items()}
