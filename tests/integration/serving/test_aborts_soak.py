"""Clients that leave at random moments, on the real engine: two seconds later nothing is held.

150 requests here; ``PRISM_SOAK=1`` sends 2,000.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .abort_driver import Books, WatchedReplica

pytestmark = [pytest.mark.serve, pytest.mark.real_engine, pytest.mark.timeout(3600)]

SOAK = os.environ.get("PRISM_SOAK") == "1"
REQUESTS = 2000 if SOAK else 150
CONCURRENT = 24
GRACE_S = 2.0

CONFIG: dict[str, Any] = {
    "extends": "cpu-smollm2",
    "model": {"name": "tiny", "path": "models:random-tiny"},
    "engine": {
        "args": {
            "max_total_tokens": 20_000,
            "context_length": 4096,
            "chunked_prefill_size": 256,
            "constrained_json_disable_any_whitespace": True,
        }
    },
    "limits": {"keepalive_after_s": 60.0},
}
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 50}},
    "required": ["names"],
    "additionalProperties": False,
}
TOPICS = [" ".join(f"topic{t}word{n}" for n in range(60)) for t in range(12)]


def random_body(rng: random.Random) -> dict[str, Any]:
    """Shared passages and a private question; one or three choices, free text or JSON."""
    passages = rng.sample(TOPICS, rng.randint(0, 4))
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": p, "prism": {"segment": p[:8], "reorderable": True}}
        for p in passages
    ]
    parts.append({"type": "text", "text": f"Question {rng.random()}?"})
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": parts}],
        "stream": True,
        "n": rng.choice([1, 3]),
        "max_tokens": rng.randint(20, 300),
        "ignore_eos": True,
    }
    if rng.random() < 0.5:
        schema = {"name": "answer", "schema": SCHEMA}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


async def _one(http: httpx.AsyncClient, seed: int, seen: Counter[str]) -> None:
    """Send a request and leave: before anything came, after the first bytes, or after some more."""
    rng = random.Random(seed)
    when = rng.choice(["early", "early", "first byte", "later", "never"])
    delay_s = rng.expovariate(1 / 0.15) if when == "early" else rng.uniform(0, 0.5)

    async def converse() -> None:
        async with http.stream("POST", "/v1/chat/completions", json=random_body(rng)) as answer:
            if answer.status_code != 200:
                seen[f"status {answer.status_code}"] += 1
                return
            async for line in answer.aiter_lines():
                if when == "first byte" or (when == "later" and time.monotonic() > deadline):
                    seen[f"left at {when}"] += 1
                    return
                if line == "data: [DONE]":
                    seen["complete"] += 1

    deadline = time.monotonic() + delay_s + 0.5
    try:
        await asyncio.wait_for(converse(), delay_s if when == "early" else None)
    except TimeoutError:
        seen["left early"] += 1


async def _soak(base_url: str) -> tuple[Counter[str], dict[str, int], dict[str, int], float]:
    seen: Counter[str] = Counter()
    books = Books()
    numbers = iter(range(REQUESTS))

    async def client(http: httpx.AsyncClient) -> None:
        for number in numbers:
            await _one(http, number, seen)

    limits = httpx.Limits(max_connections=CONCURRENT, max_keepalive_connections=CONCURRENT)
    start = time.monotonic()
    async with httpx.AsyncClient(base_url=base_url, timeout=120.0, limits=limits) as http:
        await asyncio.gather(*(client(http) for _ in range(CONCURRENT)))
    took_s = time.monotonic() - start
    await asyncio.sleep(GRACE_S)
    stages: dict[str, int] = await books.replica.stages_left.remote()
    return seen, stages, await books.open(), took_s


def test_nothing_is_held_two_seconds_after_the_last_client_left(
    run_app: Callable[..., httpx.Client], random_tiny: Any
) -> None:
    client = run_app(CONFIG, replica_class=WatchedReplica)
    seen, stages, held, took_s = asyncio.run(_soak(str(client.base_url)))
    stages = {"queued": REQUESTS - sum(stages.values()), **stages}
    print(f"{REQUESTS} requests in {took_s:.0f} s: clients {dict(seen)}; left at {stages}")
    assert held == {}
    assert sum(seen.values()) == REQUESTS
    assert not [kind for kind in seen if kind.startswith("status")], seen
    expected = ["queued", "decoding", "finished"]
    if SOAK:
        expected += ["gate", "waiting", "prefill"]
    assert all(stages.get(stage) for stage in expected), stages
    # The engine is as good as new: SGLang's own idle check would have ended it on a leak.
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "n": 3}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 3
