"""The order that QAS planned is the order in which the engine admits, whatever the way there does.

Three ingresses, bodies delayed at random, at least three requests waiting; bodies that are too late
are voided and planned again. The real SGLang scheduler's own admissions are read by the plugin in its
process.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import httpx
import pytest

from loadgen.bench.handles import replica_handle
from prism_ray.serving.messages import Answer, Body
from prism_ray.telemetry.codec import DecisionRow
from prism_ray.telemetry.embedded import EmbeddedStore
from prism_ray.telemetry.reader import read_state

from .admissions import AdmissionsReplica

pytestmark = pytest.mark.serve

CONCURRENT = 40
MAX_DELAY_S = 0.03
CHOSEN_SHARE = 0.8
"""At least so many are admitted while three or more wait: all but the first and the last ones."""
LATE_SHARE = 0.05
LATE_S = 1.5
"""So late that the plan gate gives up: more than its patience, whatever the smoothed lag."""


class SlowWayReplica(AdmissionsReplica):
    """A replica whose bodies arrive late at random."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        self._random = random.Random(7)
        await super().__init__(config_json)

    async def generate(self, call: Body) -> AsyncIterator[Answer]:
        await asyncio.sleep(self._delay_s(call))
        async for message in super().generate(call):
            yield message

    def _delay_s(self, call: Body) -> float:
        return self._random.uniform(0, MAX_DELAY_S)


class LateBodiesReplica(SlowWayReplica):
    """And some first attempts are so late that their entries are voided."""

    def _delay_s(self, call: Body) -> float:
        late = call.attempt == 0 and self._random.random() < LATE_SHARE
        return LATE_S if late else super()._delay_s(call)


SIMULATED = {
    "extends": "simulated",
    "engine": {"simulated": {"pool_tokens": 20_000, "context_length": 4096}},
}
SGLANG = {
    "extends": "cpu-smollm2",
    "model": {"name": "simulated", "path": "models:random-tiny"},
    "engine": {"args": {"max_total_tokens": 20_000, "chunked_prefill_size": 512}},
}


@pytest.mark.parametrize(
    ("engine", "replica_class", "requests"),
    [
        pytest.param(SIMULATED, SlowWayReplica, 500, id="simulated"),
        pytest.param(
            SIMULATED, LateBodiesReplica, 250, id="simulated, with bodies that are too late"
        ),
        pytest.param(
            SGLANG,
            LateBodiesReplica,
            500,
            id="sglang, with bodies that are too late",
            marks=pytest.mark.real_engine,
        ),
    ],
)
def test_the_engine_admits_in_the_planned_order(
    run_app: Callable[..., httpx.Client],
    request: pytest.FixtureRequest,
    engine: dict[str, Any],
    replica_class: type[SlowWayReplica],
    requests: int,
) -> None:
    if engine is SGLANG:
        request.getfixturevalue("random_tiny")
    store = EmbeddedStore.start()
    try:
        config = engine | {
            "ingress": {"count": 3, "num_cpus": 0.1},
            "replicas": {"max_running": 8, "num_cpus": 0.5, "body_wait_s": 0.2},
            "redis": {"url": store.url},
        }
        client = run_app(config, replica_class=replica_class)
        asyncio.run(_fire(str(client.base_url), requests))
        handle = replica_handle()
        admitted = handle.admissions.remote().result()
        times_unix_s = handle.admission_times_unix_s.remote().result()
        rows = asyncio.run(_decisions(store.url, requests))
    finally:
        store.stop()
    assert len(admitted) == len(set(admitted)) == requests
    chosen = sum(waited >= 3 for waited in _waited_meanwhile(rows, times_unix_s))
    print(f"{chosen} of {requests} were admitted while three or more waited in the window")
    assert chosen >= CHOSEN_SHARE * requests
    planned = [row.decision for row in rows]
    planned.sort(key=lambda d: (d.plan_version, d.position))
    last_attempt = {d.request_id: d.attempt for d in planned}
    again = sum(attempt > 0 for attempt in last_attempt.values())
    print(f"{again} of {requests} were voided and planned again")
    if replica_class is LateBodiesReplica:
        assert again >= LATE_SHARE * requests / 3, "no entry was voided"
    expected = [d.request_id for d in planned if d.attempt == last_attempt[d.request_id]]
    assert admitted == expected


async def _decisions(url: str, requests: int) -> tuple[DecisionRow, ...]:
    await asyncio.sleep(1.0)  # the store's writer works in the background
    state = await read_state(url, "default", decisions=10 * requests)
    return state.decisions


def _waited_meanwhile(rows: Iterable[DecisionRow], times_unix_s: list[float]) -> list[int]:
    """How many requests waited in the window at each time: had come, and had no decision yet."""
    first = [row for row in rows if row.decision.attempt == 0]
    came = sorted(row.at_unix_s - row.decision.queue_s for row in first)
    left = sorted(row.at_unix_s for row in first)
    return [bisect_left(came, at) - bisect_right(left, at) for at in times_unix_s]


async def _fire(base_url: str, requests: int) -> None:
    """Send all requests, a bounded number at a time."""
    rng = random.Random(3)
    words = [f"word{n}" for n in range(200)]
    documents = [" ".join(rng.choices(words, k=40)) for _ in range(20)]
    slots = asyncio.Semaphore(CONCURRENT)

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        async with slots:
            await asyncio.sleep(rng.uniform(0, 0.02))
            parts: list[dict[str, Any]] = [
                {"type": "text", "text": d, "prism": {"segment": f"d{i}", "reorderable": True}}
                for i, d in enumerate(rng.sample(documents, 4))
            ]
            parts.append({"type": "text", "text": f"Question {number}?"})
            body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text

    async with httpx.AsyncClient(base_url=base_url, timeout=300.0) as http:
        await asyncio.gather(*(ask(http, number) for number in range(requests)))
