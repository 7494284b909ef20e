"""A QAS actor without Ray, on a clock of its own, and tickets to give it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from prism_ray import cache_news
from prism_ray.cache_news import CacheNews
from prism_ray.config import PrismConfig
from prism_ray.model import (
    NO_GAP,
    Completion,
    Decision,
    Outcome,
    ReplicaCapacity,
    ReplicaSnapshot,
    Segment,
    Skeleton,
    Ticket,
)
from prism_ray.serving.messages import Heard, Hello, PlanDelivery, PrefillDone, Report, Undecided
from prism_ray.serving.qas_actor import QasActor

CAPACITY = ReplicaCapacity(pool_tokens=10_000, max_running=4, prefill_ahead_tokens=100)
CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2},
    "placement": {"policy": "least-loaded"},
    "scheduler": {"round_interval_s": 0.0},
    "redis": {"url": "redis://127.0.0.1:1"},
}


def ticket(name: str, attempt: int = 0, ingress: str = "", tokens: int = 60) -> Ticket:
    """A request of 60 tokens; one whose name begins with "shared" has 40 of them in common."""
    shared = (Segment(b"shared", 40),) if name.startswith("shared") else ()
    gaps = (NO_GAP,) * len(shared)
    skeleton = Skeleton(None, shared, gaps, tokens - 40 * len(shared))
    return Ticket(name, skeleton, 0.0, max_new_tokens=1, attempt=attempt, ingress=ingress)


def hello(replica: str, life: int = 1, *, tells_cache: bool = False) -> Hello:
    capacity = replace(CAPACITY, tells_cache=tells_cache)
    return Hello(replica, f"{replica}.{life}", "m", capacity)


class Bench:
    def __init__(self, **more: Any) -> None:
        self.now = 100.0
        config = PrismConfig.load(CONFIG | more)
        self.actor = QasActor("test", config.to_json(), clock=lambda: self.now)
        self.sequences: dict[str, int] = {}
        self.queued_tokens: int | None = None

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.actor._tasks:
            task.remove_done_callback(self.actor._die_with)
            task.cancel()
        await asyncio.gather(*self.actor._tasks, return_exceptions=True)

    def submit(
        self, name: str, attempt: int = 0, ingress: str = "", deadline_s: float | None = None
    ) -> asyncio.Task[Decision | Undecided]:
        call = self.actor.submit(ticket(name, attempt, ingress), 0.0, deadline_s, attempt > 0)
        return asyncio.ensure_future(call)

    async def plans(
        self, replica: str, read_version: int = 0, life: int = 1
    ) -> PlanDelivery | None:
        call = self.actor.plans(replica, f"{replica}.{life}", read_version)
        return await asyncio.wait_for(call, 1.0)

    async def report(
        self, replica: str, *done: str, life: int = 1, snapshot: bool = False, sequence: int = 0
    ) -> bool:
        number = sequence or self.sequences.get(replica, 0) + 1
        self.sequences[replica] = number
        incarnation = f"{replica}.{life}"
        numbers = (number, 0, 0, 0, 0, 0, 0, 0, 0.0)
        completed = tuple(Completion(name, 0, Outcome.FINISHED) for name in done)
        shot = ReplicaSnapshot(replica, incarnation, *numbers) if snapshot else None
        told = await self.actor.report(
            Report(
                replica,
                incarnation,
                number,
                0,
                prefilled=tuple(PrefillDone(name, 0, 60, 10) for name in done),
                completed=completed,
                snapshot=shot,
            )
        )
        self.queued_tokens = told.queued_tokens
        return bool(told.heard)

    async def tell(self, replica: str, *news: CacheNews) -> Heard:
        """A report that brings what the engine said of its cache."""
        number = self.sequences.get(replica, 0) + 1
        self.sequences[replica] = number
        cache = tuple(cache_news.encode(message) for message in news)
        told = await self.actor.report(Report(replica, f"{replica}.1", number, 0, cache=cache))
        return told.heard

    async def check(self) -> dict[str, int]:
        return await self.actor.check()

    def tidy(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.actor._tidy(self.now)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
