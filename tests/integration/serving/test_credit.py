"""Late binding, measured on the simulated engine with steps of 25 ms: never starved, never flooded."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import httpx
import pytest

from loadgen.bench.handles import replica_handle
from prism_ray.config import PrismConfig
from prism_ray.engine.base import Engine
from prism_ray.engine.batch import StepEnd
from prism_ray.engine.simulated import SimulatedEngine
from prism_ray.serving.replica import Replica

pytestmark = pytest.mark.serve

CHUNK = 768
SHORT = 512
"""Less than a chunk, and three are two chunks: credit is used up exactly, no prompt overdraws it. The
engine takes 60 of them a second."""
LONG = 2 * CHUNK
"""Two steps a request: 20 requests/s, which two busy cores can carry."""

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"max_running": 64},
    "engine": {
        "simulated": {
            "cost": "step-25ms",
            "chunked_prefill_tokens": CHUNK,
            "pool_tokens": 60_000,
            "context_length": 4096,
        }
    },
}


class ObservedReplica(Replica):
    """A replica that says what its engine did while it ran."""

    def _make_engine(self, config: PrismConfig) -> Engine:
        engine = super()._make_engine(config)
        assert isinstance(engine, SimulatedEngine)
        self._batches: list[tuple[int, int]] = []
        model, end_step = engine._model, engine._model.end_step

        def noting() -> StepEnd:
            """Nothing leaves the queue while a batch runs: at its end it is longest."""
            assert model._current is not None
            queued = [s.fill_tokens - s.computed for s in (*model._waiting, model._chunked) if s]
            self._batches.append((model._current.new_tokens, sum(queued)))
            return end_step()

        model.end_step = noting  # type: ignore[method-assign]
        return engine

    async def idle_s(self) -> float:
        load = await self._engine.load()
        return load.extra["idle_s"]

    async def batches(self) -> list[tuple[int, int]]:
        """Tokens that each batch prefilled, and those that were behind it when it ended."""
        return self._batches


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    return run_app(CONFIG, replica_class=ObservedReplica)


def test_the_engine_is_not_idle_while_work_waits(client: httpx.Client) -> None:
    samples = asyncio.run(_overload(client, LONG, requests=240, arrivals_per_s=30))
    # Only moments with work waiting in QAS count: an engine without offers is idle by right.
    busy = [(a, b) for a, b in pairwise(samples) if a.waiting and b.waiting]
    assert len(busy) >= 20
    idle_s = sum(b.idle_s - a.idle_s for a, b in busy)
    elapsed_s = sum(b.at_s - a.at_s for a, b in busy)
    # Where others want the CPUs, too, every hop on the way of a plan waits for its turn.
    crowding = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    share = idle_s / elapsed_s
    print(f"idle {idle_s:.3f} s of {elapsed_s:.1f} s, load x{crowding:.1f}")
    assert share < 0.02 * crowding, (
        f"idle {idle_s:.3f} s of {elapsed_s:.1f} s, load x{crowding:.1f}"
    )


def test_its_queue_is_at_most_one_prefill_batch_beyond_the_running_one(
    client: httpx.Client,
) -> None:
    before = len(replica_handle().batches.remote().result())
    samples = asyncio.run(_overload(client, SHORT, requests=270, arrivals_per_s=90))
    batches = replica_handle().batches.remote().result()[before:]
    assert max(sample.waiting for sample in samples) > 20, "the window must have had work"
    behind_full = [queued for prefilled, queued in batches if prefilled == CHUNK]
    print(f"{len(behind_full)} of {len(batches)} batches were full")
    assert len(behind_full) >= 50
    assert max(behind_full) <= CHUNK
    assert max(prefilled + queued for prefilled, queued in batches) <= 2 * CHUNK


class Sample(NamedTuple):
    """How long the engine has been idle so far, and how many requests wait in QAS."""

    at_s: float
    idle_s: float
    waiting: int


async def _overload(
    client: httpx.Client, prompt_tokens: int, *, requests: int, arrivals_per_s: float
) -> list[Sample]:
    """Send more than the engine takes; samples of the time until all are answered."""
    rng = random.Random(5)
    handle = replica_handle()
    samples: list[Sample] = []

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(number / arrivals_per_s)
        ids = rng.choices(range(1000), k=prompt_tokens)
        answer = await http.post("/v1/completions", json={"prompt": ids, "max_tokens": 2})
        assert answer.status_code == 200, answer.text

    async def watch(http: httpx.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.1)
            at_s, idle_s = loop.time(), await handle.idle_s.remote()
            waiting = (await http.get("/prism/state")).json()["waiting"]
            samples.append(Sample(at_s, idle_s, waiting))

    limits = httpx.Limits(max_connections=400)
    async with httpx.AsyncClient(base_url=client.base_url, timeout=120.0, limits=limits) as http:
        watcher = asyncio.create_task(watch(http))
        await asyncio.gather(*(ask(http, number) for number in range(requests)))
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    return samples
