"""Late binding, measured on the simulated engine with steps of 25 ms: never starved, never flooded."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loadgen.bench.handles import replica_handle
from prism_ray.serving.replica import Replica

pytestmark = pytest.mark.serve

CHUNK = 512
PROMPT_WORDS = 250
"""About 1,000 tokens: two steps a request, 20 requests/s, which two busy cores can carry."""
ARRIVALS_PER_S = 30

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"max_running": 64},
    "engine": {
        "simulated": {
            "cost": "step-25ms",
            "chunked_prefill_tokens": CHUNK,
            "max_prefill_tokens": CHUNK,
            "pool_tokens": 60_000,
            "context_length": 4096,
        }
    },
}


class ObservedReplica(Replica):
    """A replica that says what its engine did while it ran."""

    async def observe(self) -> dict[str, float]:
        load = await self._engine.load()
        in_engine = [h for h in self._held.values() if h.in_engine and h.prefill_ended_s is None]
        not_started = sum(h.uncached_tokens for h in in_engine if h.prefill_started_s is None)
        return {
            "idle_s": load.extra["idle_s"],
            "engine_queue_tokens": float(not_started),
            "in_line": float(len(self._gate.in_line())),
        }


def test_the_engine_is_fed_and_its_queue_stays_short(run_app: Callable[..., httpx.Client]) -> None:
    client = run_app(CONFIG, replica_class=ObservedReplica)
    samples, waiting = asyncio.run(_overload(str(client.base_url)))
    # Only moments with work waiting in QAS count: an engine without offers is idle by right.
    busy = [i for i in range(1, len(samples)) if waiting[i] and waiting[i - 1]]
    assert len(busy) >= 20
    idle_s = sum(samples[i]["idle_s"] - samples[i - 1]["idle_s"] for i in busy)
    elapsed_s = sum(samples[i]["at_s"] - samples[i - 1]["at_s"] for i in busy)
    # Where others want the CPUs, too, every hop on the way of a plan waits for its turn.
    crowding = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    share = idle_s / elapsed_s
    assert share < 0.02 * crowding, (
        f"idle {idle_s:.3f} s of {elapsed_s:.1f} s, load x{crowding:.1f}"
    )
    # One prefill batch beyond the running one; an admission may overdraw by one request.
    longest = max(s["engine_queue_tokens"] for s in samples)
    assert longest <= 2 * CHUNK, longest
    assert max(waiting) > 20, "the window must have had work"


async def _overload(base_url: str) -> tuple[list[dict[str, float]], list[int]]:
    rng = random.Random(5)
    words = [f"word{n}" for n in range(200)]
    handle = replica_handle()
    samples: list[dict[str, float]] = []
    waiting: list[int] = []

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(number / ARRIVALS_PER_S)
        text = " ".join(rng.choices(words, k=PROMPT_WORDS))
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text

    async def watch(http: httpx.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.1)
            seen = await handle.observe.remote()
            samples.append(seen | {"at_s": loop.time()})
            waiting.append((await http.get("/prism/state")).json()["waiting"])

    limits = httpx.Limits(max_connections=400)
    async with httpx.AsyncClient(base_url=base_url, timeout=120.0, limits=limits) as http:
        watcher = asyncio.create_task(watch(http))
        await asyncio.gather(*(ask(http, number) for number in range(300)))
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    return samples[: len(waiting)], waiting
