"""A replica that fails by a fault of its own is replaced, and nobody waits for it in vain."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from loadgen.bench.handles import replica_handle
from prism_ray.serving.messages import Answer, Body, Payloads
from prism_ray.serving.replica import Replica

from .contract_tools import CHAT, chat, events, idle, wait_until

pytestmark = pytest.mark.serve


class FaultyReplica(Replica):
    """A replica one of whose loops can be made to fail with its next work, or that dies by itself."""

    _dies = False

    async def die_within_an_answer(self) -> None:
        """The next answer's first payload is the last thing that this process does."""
        self._dies = True

    async def generate(self, call: Body) -> AsyncIterator[Answer]:
        async for message in super().generate(call):
            if self._dies and isinstance(message, Payloads):
                yield Payloads(message.items)
                await asyncio.sleep(0.3)
                os._exit(1)
            yield message

    async def break_events(self) -> None:
        def fail(event: Any) -> None:
            raise RuntimeError("a fault of the events")

        self._on_engine_event = fail  # type: ignore[method-assign]

    async def break_gate(self) -> None:
        def fail() -> int:
            raise RuntimeError("a fault of the gate")

        self._gate._owed_tokens = fail


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    return run_app({"extends": "simulated"}, replica_class=FaultyReplica)


def order(what: str) -> None:
    """Call one of the replica's own methods."""

    async def call() -> None:
        await getattr(replica_handle(), what).remote()

    asyncio.run(call())


@pytest.mark.parametrize("fault", ["break_events", "break_gate"])
def test_a_replica_whose_loop_failed_is_replaced(client: httpx.Client, fault: str) -> None:
    first = client.post(CHAT, json=chat()).headers["x-prism-replica"]

    order(fault)
    deadline = time.monotonic() + 60
    while True:
        answer = client.post(CHAT, json=chat(prism={"deadline_s": 20}))
        if answer.status_code == 200 and answer.headers["x-prism-replica"] != first:
            break
        # Refused or answered, but never without an end: the client's own limit would say so.
        assert answer.status_code in (200, 408, 503), answer.text
        assert time.monotonic() < deadline, "the replica was not replaced"
        time.sleep(0.5)
    wait_until(lambda: idle(client), "books did not close")


class TestAReplicaThatDiesAfterItsFirstPayload:
    """Whether the request can be retried is a matter of what the client has got, not of what was made."""

    def test_a_whole_answer_is_made_again(self, client: httpx.Client) -> None:
        first = client.post(CHAT, json=chat()).headers["x-prism-replica"]
        order("die_within_an_answer")
        answer = client.post(CHAT, json=chat(prism={"report": True}))
        assert answer.status_code == 200, answer.text
        report = answer.json()["prism"]
        assert report["attempts"] >= 2
        assert report["replica"] == answer.headers["x-prism-replica"] != first
        assert report["ttft"]["total_s"] > 0
        wait_until(lambda: idle(client), "books did not close")

    def test_a_stream_ends_with_an_error(self, client: httpx.Client) -> None:
        order("die_within_an_answer")
        answer = client.post(CHAT, json=chat(stream=True))
        assert answer.status_code == 200, "its head had left"
        *chunks, last = events(answer.text)
        assert chunks[0]["choices"], "something had come"
        assert last["error"]["code"] == "internal_error", last
        assert "died" in last["error"]["message"]
        wait_until(lambda: idle(client), "books did not close")
