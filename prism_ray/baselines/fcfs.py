"""The policy ``fcfs``: oldest first, segments as the client wrote them; the trivial twin of ``qas``.

Keeps no counters, so its demand tables are empty and retention falls back to recency.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from prism_ray.parameters import checked
from prism_ray.ranking import Path, QueuePolicy, Ranking, Waiting, oldest_first
from prism_ray.scheduling import POLICIES, CacheView

REFRESHED_MAX = 128
"""Waiting requests whose prefixes are renewed (SGLang's WAITING_QUEUE_PREFIX_MATCH_MAX)."""


@POLICIES.register("fcfs")
class Fcfs(QueuePolicy):
    """First come, first served. Has no parameters: any raises ValueError with its name."""

    name = "fcfs"

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        checked(self.name, params, {})
        super().__init__()

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        return oldest_first(queue)


@POLICIES.register("fcfs-refresh")
class RefreshingFcfs(Fcfs):
    """``fcfs`` as SGLang runs it by default: waiting requests keep their prefixes recent in an LRU.

    The order is that of ``fcfs``; an engine that honours ``scheduling.Refreshing`` evicts otherwise.
    """

    name = "fcfs-refresh"

    def refresh_paths(self) -> Iterator[Path]:
        """See ``scheduling.Refreshing``: the oldest requests' paths, the oldest last."""
        oldest = list(islice(self.queue.values(), REFRESHED_MAX))
        return (waiting.path for waiting in reversed(oldest))
