"""Tenants over HTTP: nothing is shared between them, and a flood of one costs another little."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

import httpx
import pytest

from .tenant_checks import DOCUMENT, body, check_that_tenants_share_nothing

pytestmark = pytest.mark.serve

STEP_S = 0.1
CHUNK = 512
PASSED_MAX = 5
"""Of the flood's requests, one a step: those sent ahead, and those that double a guest's batch."""
CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "scheduler": {"policy": "qas"},  # its reasons tell of a bucket, which must be the tenant's own
    "replicas": {"max_running": 64},
    "tenants": {"queue_requests": 60},
    "engine": {
        "simulated": {
            "cost": "step-25ms",
            "speed": 0.025 / STEP_S,
            "chunked_prefill_tokens": CHUNK,
            "max_prefill_tokens": CHUNK,
            "pool_tokens": 60_000,
            "context_length": 4096,
        }
    },
}


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    return run_app(CONFIG)


class TestSimulatedEngine:
    def test_equal_documents_of_two_tenants_are_never_shared(self, client: httpx.Client) -> None:
        check_that_tenants_share_nothing(client)

    def test_the_window_of_several_tenants_is_told_in_totals(self, client: httpx.Client) -> None:
        window = client.get("/prism/state").json()["window"]
        assert set(window) == {"policy", "queued", "active", "tenants"}

    def test_a_flood_costs_another_tenant_at_most_the_bound(self, client: httpx.Client) -> None:
        url = str(client.base_url)
        alone = asyncio.run(Watch(url).quiet_tenant(flood=False))
        beside = asyncio.run(Watch(url).quiet_tenant(flood=True))
        told = (
            sorted(alone.waits),
            sorted(beside.waits),
            median(beside.stalls),
            max(beside.stalls),
        )
        prefill_ahead_s = 2 * STEP_S
        allowed_s = 2 * median(s for s, _ in alone.waits) + prefill_ahead_s
        # What a busy machine makes every request wait, whoever asks, is not another tenant's doing.
        assert median(s for s, _ in beside.waits) <= allowed_s + 2 * median(beside.stalls), told
        # Nor is a stall that nothing sampled, in which the flood stood still too.
        longest_s = allowed_s + 2 * max(beside.stalls)
        assert all(s <= longest_s or passed <= PASSED_MAX for s, passed in beside.waits), told
        assert beside.refused["a"] > 0, "the flooding tenant's own queue was never full"
        assert beside.refused["b"] == 0
        assert p99(beside.flood_times) > 3.0, "the flood was none"

    def test_the_books_close(self, client: httpx.Client) -> None:
        deadline = time.monotonic() + 20
        while True:
            state = client.get("/prism/state").json()
            if not (state["waiting"] or state["sent"]):
                break
            assert time.monotonic() < deadline, state
            time.sleep(0.2)


class Watch:
    """Asks as two tenants at once; b's and a's times to first token, refusals, and stalls.

    With b's times goes how many of a's requests got their first token meanwhile. A stall is how long
    the application takes to say that it is alive.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.waits: list[tuple[float, int]] = []
        self.flood_times: list[float] = []
        self.stalls: list[float] = []
        self.refused: Counter[str] = Counter()

    async def quiet_tenant(self, *, flood: bool) -> Watch:
        """b at a tenth of the capacity, alone or beside a at twice the capacity.

        Each request of a has some 450 tokens that are not cached: one step of prefill.
        """
        rng = random.Random(3)
        words = [f"word{n}" for n in range(300)]
        limits = httpx.Limits(max_connections=400)
        async with httpx.AsyncClient(base_url=self.url, timeout=60.0, limits=limits) as http:
            await asyncio.gather(
                self._ask(http, "a", 0.0, "First?"), self._ask(http, "b", 0.3, "First?")
            )
            self.waits.clear()
            lead_s = 5.0 if flood else 0.0
            quiet = [
                self._ask(http, "b", lead_s + n + rng.random(), f"Question {n}?") for n in range(12)
            ]
            loud = [
                asyncio.create_task(
                    self._ask(http, "a", n / 20, " ".join(rng.choices(words, k=110)))
                )
                for n in range(int(20 * (lead_s + 13)) if flood else 0)
            ]
            watching = asyncio.create_task(self._watch(http))
            await asyncio.gather(*quiet)
            for task in (*loud, watching):
                task.cancel()
            await asyncio.gather(*loud, watching, return_exceptions=True)
        return self

    async def _ask(self, http: httpx.AsyncClient, tenant: str, at_s: float, question: str) -> None:
        await asyncio.sleep(at_s)
        started, before = time.monotonic(), len(self.flood_times)
        request = body(f"document of {tenant} " + DOCUMENT, question, stream=True)
        headers = {"x-prism-tenant": tenant}
        async with http.stream(
            "POST", "/v1/chat/completions", json=request, headers=headers
        ) as answer:
            if answer.status_code == 429:
                self.refused[tenant] += 1
                return
            assert answer.status_code == 200, await answer.aread()
            waiting = True
            async for line in answer.aiter_lines():
                if waiting and '"content"' in line:
                    waiting = False
                    took_s = time.monotonic() - started
                    if tenant == "b":
                        self.waits.append((took_s, len(self.flood_times) - before))
                    else:
                        self.flood_times.append(took_s)

    async def _watch(self, http: httpx.AsyncClient) -> None:
        while True:
            started = time.monotonic()
            await http.get("/health")
            self.stalls.append(time.monotonic() - started)
            await asyncio.sleep(0.05)


def p99(times: list[float]) -> float:
    """Of few samples it is the largest."""
    return sorted(times)[int(0.99 * len(times))]
