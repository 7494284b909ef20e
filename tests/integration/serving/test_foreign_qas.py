"""Two QAS that feed one replica at once, as in an update: its credit is kept by the replica itself."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import ray

from loadgen.bench.handles import replica_handle
from prism_ray.config import PrismConfig
from prism_ray.model import Decision, Skeleton, Ticket
from prism_ray.serving.messages import Body
from prism_ray.serving.qas_actor import QasActor

from .admissions import AdmissionsReplica
from .contract_tools import CHAT, chat, idle, state, wait_until

pytestmark = pytest.mark.serve

CHUNK = 256
FOREIGN_TOKENS = 3 * CHUNK
"""More than the whole credit of 2 x CHUNK, which one request may overdraw."""

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "scheduler": {"policy": "fcfs", "params": {}},
    "engine": {
        "simulated": {
            "cost": "step-25ms",
            "speed": 0.1,
            "chunked_prefill_tokens": CHUNK,
            "max_prefill_tokens": CHUNK,
            "pool_tokens": 40_000,
            "context_length": 8192,
        }
    },
    "limits": {"qas_timeout_s": 3.0},
}


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    return run_app(CONFIG, replica_class=AdmissionsReplica)


@pytest.fixture(scope="module")
def foreign(client: httpx.Client) -> Iterator[Any]:
    """A second QAS, attached to the application's replica."""
    config_json = PrismConfig.load(CONFIG).to_json()
    options = {"name": "foreign-qas", "namespace": "serve", "num_cpus": 0, "max_concurrency": 1000}
    actor = ray.remote(QasActor).options(**options).remote("foreign", config_json)
    address = ray.get(actor.address.remote())
    asyncio.run(_call(replica_handle().attach.remote(address)))
    wait_until(
        lambda: len(ray.get(actor.state.remote(0))["replicas"]) == 1, "the replica did not attach"
    )
    yield actor
    ray.kill(actor)


async def _call(response: Any) -> Any:
    return await response


async def ask_as_foreign(actor: Any) -> tuple[str, asyncio.Task[list[Any]]]:
    """A request that the foreign QAS decides; its id, and its answer to come."""
    request_id = uuid.uuid4().hex
    ticket = Ticket(request_id, Skeleton(None, (), (), FOREIGN_TOKENS), 0.0, max_new_tokens=1)
    decision = await actor.submit.remote(ticket, 0.0, None, False)
    assert isinstance(decision, Decision)
    body = Body(
        request_id=request_id,
        attempt=0,
        epoch=decision.epoch,
        plan_version=decision.plan_version,
        endpoint="completions",
        body={"model": "simulated", "prompt": "x", "max_tokens": 1},
        prompt_ids=[(7 * n + hash(request_id)) % 250 for n in range(FOREIGN_TOKENS)],
        boundaries=(),
        segments=(),
        system_tokens=0,
        uncached_tokens=FOREIGN_TOKENS,
        cache_salt=request_id,
    )
    handle = replica_handle().options(stream=True, session_id=decision.replica)

    async def answer() -> list[Any]:
        return [message async for message in handle.generate.remote(body)]

    return request_id, asyncio.create_task(answer())


async def one_race(base_url: str, foreign: Any, round_number: int) -> dict[str, Any]:
    """The foreign QAS takes the credit, and at once two clients ask; what became of all three."""

    async def ask(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
        words = " ".join(f"{name}{round_number}w{n}" for n in range(60))
        body = chat(words, prism={"report": True})
        answer = await http.post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
        report: dict[str, Any] = answer.json()["prism"]
        return report | {"id": answer.json()["id"].removeprefix("chatcmpl-")}

    async with httpx.AsyncClient(base_url=base_url, timeout=60.0) as http:
        before = len(await replica_handle().admissions.remote())
        foreign_id, foreign_answer = await ask_as_foreign(foreign)
        deadline = time.monotonic() + 5
        while (await replica_handle().books.remote())["owed_tokens"] < FOREIGN_TOKENS:
            assert time.monotonic() < deadline, "the foreign request never reached the engine"
        first = asyncio.create_task(ask(http, "first"))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(ask(http, "second"))
        reports = [await first, await second]
        assert await foreign_answer
        admitted = (await replica_handle().admissions.remote())[before:]
    return {"reports": reports, "admitted": admitted, "foreign": foreign_id}


def test_over_credit_sends_a_request_back_to_the_windows_head_and_it_is_served_once(
    client: httpx.Client, foreign: Any
) -> None:
    # A snapshot may tell of the foreign request before the race: then nothing is over credit. Try again.
    sent_back = 0
    for number in range(24):
        raced = asyncio.run(one_race(str(client.base_url), foreign, number))
        assert len(raced["admitted"]) == len(set(raced["admitted"])) == 3, "each is admitted once"
        assert raced["admitted"][0] == raced["foreign"]
        attempts = [report["attempts"] for report in raced["reports"]]
        sent_back += attempts[0] > 1
        if attempts[0] > 1:
            waits = [report["ttft"]["total_s"] for report in raced["reports"]]
            assert waits[0] < waits[1] + 0.05, "it went back to the head, not to the end"
        wait_until(lambda: idle(client), "books did not close")
        if sent_back == 2:
            break
    assert sent_back == 2, "no request was over credit"
    (replica,) = ray.get(foreign.state.remote(0))["replicas"]
    assert (replica["sent"], replica["not_prefilled"]) == (0, 0)
    assert state(client)["replicas"][0]["foreign"] == 0
