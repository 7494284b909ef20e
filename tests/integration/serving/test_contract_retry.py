"""Retry-After against the time until a retry is accepted, at two drain rates; 503 before a replica."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from ray import serve

from prism_ray.application import assemble
from prism_ray.config import PrismConfig
from prism_ray.serving.replica import Replica

from .contract_tools import CHAT, chat, error_of

pytestmark = pytest.mark.serve

QUEUE = 3
TOKENS = 400


class Crowd:
    """Requests to an engine that runs one at a time; what was let in stays until the end."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._let_in: list[asyncio.Task[httpx.Response]] = []

    async def join(self) -> None:
        """One more request, into a queue that has room."""
        body = chat(f"Request {len(self._let_in)}", max_tokens=TOKENS)
        self._let_in.append(asyncio.create_task(self._client.post(CHAT, json=body)))
        await asyncio.sleep(0.05)

    async def fill(self) -> None:
        while await self.waiting() < QUEUE:
            await self.join()

    async def until_there_is_room(self) -> float:
        """When a place in the queue got free, on the monotonic clock."""
        while await self.waiting() == QUEUE:
            pass
        return time.monotonic()

    async def waiting(self) -> int:
        return int((await self._client.get("/prism/state")).json()["waiting"])

    async def leave(self) -> None:
        for task in self._let_in:
            task.cancel()
        await asyncio.gather(*self._let_in, return_exceptions=True)


async def told_and_waited(url: str) -> tuple[float, float]:
    """What a refusal told, and how long it then took until a request was let in, in seconds."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        crowd = Crowd(client)
        try:
            for _ in range(4):  # departures that the server can measure
                await crowd.fill()
                await crowd.until_there_is_room()
            await crowd.fill()
            refusal = await client.post(CHAT, json=chat())
            asked = time.monotonic()
            error_of(refusal, 429)
            waited = await crowd.until_there_is_room() - asked
            retried = await client.post(CHAT, json=chat(stream=True))
            assert retried.status_code == 200, "the retry was not accepted"
            return float(refusal.headers["retry-after"]), waited
        finally:
            await crowd.leave()


class TestRetryAfter:
    @pytest.mark.parametrize("speed", [0.8, 0.4])
    def test_it_is_within_half_of_the_time_until_a_retry_is_accepted(
        self, run_app: Callable[..., httpx.Client], speed: float
    ) -> None:
        config: dict[str, Any] = {
            "extends": "simulated",
            "replicas": {"count": 1, "max_running": 1},
            "engine": {"simulated": {"speed": speed}},
            "limits": {"queue_requests": QUEUE},
        }
        client = run_app(config)
        told, waited = asyncio.run(told_and_waited(str(client.base_url)))
        assert waited > 1.0, "too fast to be told in whole seconds"
        assert 0.5 * waited <= told <= 1.5 * waited


class LateReplica(Replica):
    """A replica whose engine takes a while to start."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        await asyncio.sleep(8.0)
        await super().__init__(config_json)  # type: ignore[misc]


class TestNoReplica:
    def test_before_a_replica_is_there_the_answer_is_503(self, serve_port: int) -> None:
        application = assemble(PrismConfig.load("simulated"), replica_class=LateReplica)
        serve.delete("default")
        deploying = threading.Thread(target=lambda: serve.run(application, name="default"))
        deploying.start()
        client = httpx.Client(base_url=f"http://127.0.0.1:{serve_port}", timeout=30)
        try:
            deadline = time.monotonic() + 60
            response = client.post(CHAT, json=chat())
            while response.status_code != 503 or "error" not in response.text:
                assert time.monotonic() < deadline, response.text
                time.sleep(0.1)
                response = client.post(CHAT, json=chat())
            assert error_of(response, 503)["code"] == "no_replica"
            assert int(response.headers["retry-after"]) >= 1
            assert error_of(client.get("/ready"), 503)["code"] == "no_replica"
            assert client.get("/health").status_code == 200
        finally:
            deploying.join(60)
        deadline = time.monotonic() + 30
        while client.post(CHAT, json=chat()).status_code != 200:
            assert time.monotonic() < deadline, "it did not get ready"
            time.sleep(0.1)
