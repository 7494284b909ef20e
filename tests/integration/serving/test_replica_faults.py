"""A replica that fails by a fault of its own is replaced, and nobody waits for it in vain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loadgen.bench.handles import replica_handle
from prism_ray.serving.replica import Replica

from .contract_tools import CHAT, chat, idle, wait_until

pytestmark = pytest.mark.serve


class FaultyReplica(Replica):
    """A replica one of whose loops can be made to fail with its next work."""

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


@pytest.mark.parametrize("fault", ["break_events", "break_gate"])
def test_a_replica_whose_loop_failed_is_replaced(client: httpx.Client, fault: str) -> None:
    first = client.post(CHAT, json=chat()).headers["x-prism-replica"]

    async def break_it() -> None:
        await getattr(replica_handle(), fault).remote()

    asyncio.run(break_it())
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
