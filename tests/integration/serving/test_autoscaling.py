"""Serve starts replicas under load and stops them afterwards; nothing is lost on either way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import ray

from .contract_tools import idle, wait_until
from .update_load import LEDGER, Ledger, Load, NotingReplica, assert_each_answered_once

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {
        "count": 1,
        "num_cpus": 0.5,
        "max_running": 8,
        "autoscaling": {"max_count": 3, "up_delay_s": 1.0, "down_delay_s": 2.0, "window_s": 4.0},
    },
    "ingress": {"count": 1, "num_cpus": 0.1},
    "placement": {"policy": "e2"},
    "engine": {
        "simulated": {
            "cost": "step-25ms",
            "chunked_prefill_tokens": 256,
            "max_prefill_tokens": 256,
            "pool_tokens": 20_000,
            "context_length": 4096,
        }
    },
}
ANSWER_TOKENS = 80
"""Two seconds of a slot: one replica answers four requests a second."""
LOAD_PER_S, TRICKLE_PER_S = 9.0, 0.5
STREAM_TOKENS = 1_200


@pytest.fixture(scope="module", autouse=True)
def _ledger(serve_port: int) -> Iterator[None]:
    ledger = Ledger.options(name=LEDGER, namespace="tests").remote()
    yield
    ray.kill(ledger)


class Story:
    """What happens to an application while the load rises and falls, and when."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.streams: dict[str, asyncio.Task[str]] = {}
        self.open_at_end: set[str] = set()
        self.answers_on_stopping = False
        self.seconds: dict[str, float] = {}

    async def happen(self, http: httpx.AsyncClient) -> None:
        assert len(_open(await _state_of(http))) == 1
        self.load.rate_per_s = LOAD_PER_S
        await self._until(http, "all three take requests", lambda now: len(_open(now)) == 3)
        await asyncio.sleep(3.0)
        self.load.rate_per_s = TRICKLE_PER_S
        await self._until(http, "nothing waits", lambda now: now["waiting"] == 0)
        await self._start_streams(http)
        await self._until(http, "a stream's replica stops", self._one_stops)
        assert self.answers_on_stopping, "a stopping replica goes on answering"
        await self._until(http, "one of them takes requests", lambda now: len(_open(now)) == 1)
        self.open_at_end = _open(await _state_of(http))

    def _one_stops(self, now: dict[str, Any]) -> bool:
        """Whether a replica with a stream takes no more requests; notes if its stream goes on."""
        stopping = self.streams.keys() & _known(now) - _open(now)
        self.answers_on_stopping = any(not self.streams[name].done() for name in stopping)
        return bool(stopping)

    async def _until(
        self, http: httpx.AsyncClient, what: str, condition: Callable[[dict[str, Any]], bool]
    ) -> None:
        began_s = time.monotonic()
        async with asyncio.timeout(60.0):
            while True:
                if condition(await _state_of(http)):
                    break
                await asyncio.sleep(0.1)
        self.seconds[what] = time.monotonic() - began_s

    async def _start_streams(self, http: httpx.AsyncClient) -> None:
        """Long answers, on two replicas at least; they outlive the replicas' last decisions."""
        for number in range(12):
            body = {
                "messages": [{"role": "user", "content": f"Stream {number}"}],
                "max_tokens": STREAM_TOKENS,
                "stream": True,
            }
            request = http.build_request("POST", "/v1/chat/completions", json=body)
            response = await http.send(request, stream=True)
            assert response.status_code == 200
            task = asyncio.create_task(_read(response))
            # Not there where comments kept the client waiting before anything was decided.
            replica = response.headers.get("x-prism-replica")
            known = replica is not None and replica not in self.streams
            self.streams[replica if known else f"more {number}"] = task
            if sum(not name.startswith("more") for name in self.streams) > 1:
                return
        raise AssertionError("all streams went to one replica")


def _known(state: dict[str, Any]) -> set[str]:
    return {r["replica"] for r in state["replicas"]}


def _open(state: dict[str, Any]) -> set[str]:
    """Replicas that requests are decided for."""
    return {r["replica"] for r in state["replicas"] if not r["draining"]}


async def _state_of(http: httpx.AsyncClient) -> dict[str, Any]:
    state: dict[str, Any] = (await http.get("/prism/state")).json()
    return state


async def _read(response: httpx.Response) -> str:
    """The last data line of a stream."""
    last = ""
    try:
        async for line in response.aiter_lines():
            last = line or last
    finally:
        await response.aclose()
    return last


def test_replicas_come_with_the_load_and_go_with_it_and_nothing_is_lost(
    run_app: Callable[..., httpx.Client], serve_port: int
) -> None:
    client = run_app(CONFIG, replica_class=NotingReplica)
    load = Load(
        f"http://127.0.0.1:{serve_port}", rate_per_s=TRICKLE_PER_S, max_tokens=ANSWER_TOKENS
    )
    story = Story(load)

    async def change(http: httpx.AsyncClient) -> None:
        await story.happen(http)
        for last in await asyncio.gather(*story.streams.values()):
            assert last == "data: [DONE]"

    outcomes = asyncio.run(load.during(change))
    print({what: round(s, 1) for what, s in story.seconds.items()}, len(outcomes), "requests")
    failed = [o for o in outcomes if o.status != 200]
    assert not failed, failed[:5]
    assert all(o.attempts <= 2 for o in outcomes)
    wait_until(
        lambda: {r["replica"] for r in _state(client)["replicas"]} == story.open_at_end,
        "the stopped replicas are still in QAS's books",
        timeout_s=30.0,
    )
    wait_until(lambda: idle(client), "something is still held")
    assert_each_answered_once(outcomes, least=20, besides=len(story.streams))


def _state(client: httpx.Client) -> dict[str, Any]:
    state: dict[str, Any] = client.get("/prism/state").json()
    return state
