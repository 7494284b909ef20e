"""A client that leaves is gone everywhere within a second, however far its request has come.

On the simulated engine with steps of a quarter of a second, so that every stage lasts long enough to
leave in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from ray import serve

from .abort_driver import Books, WatchedReplica, leave, until

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"max_running": 8, "body_wait_s": 20.0},
    "engine": {
        "simulated": {
            "cost": "step-25ms",
            "speed": 0.1,
            "chunked_prefill_tokens": 256,
            "max_prefill_tokens": 256,
            "pool_tokens": 20_000,
            "context_length": 8192,
        }
    },
    "limits": {"qas_timeout_s": 20.0, "keepalive_after_s": 30.0},
}
LONG_WORDS = 400
"""About 1,600 tokens: seven steps of prefill, and more than the credit of 512."""

STAGES = ["queued", "way", "gate", "waiting", "prefill", "decoding"]


def body(name: str, words: int, **more: Any) -> dict[str, Any]:
    text = " ".join(f"{name}{n}" for n in range(words))
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 400, **more}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for all tests: in some of its modes Serve ties its handles to the first."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def base_url(loop: asyncio.Runner, run_app: Callable[..., httpx.Client]) -> str:
    return str(run_app(CONFIG, replica_class=WatchedReplica).base_url)


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_client_that_leaves_is_gone_within_a_second(
    base_url: str, loop: asyncio.Runner, stage: str, stream: bool, choices: int
) -> None:
    loop.run(_leave_in(base_url, stage, {"stream": stream, "n": choices}))


async def _leave_in(base_url: str, stage: str, more: dict[str, Any]) -> None:
    books = Books()
    look_s = await books.seconds_to_look()
    async with httpx.AsyncClient(base_url=base_url, timeout=60.0) as http:

        def ask(name: str, words: int) -> asyncio.Task[httpx.Response]:
            request = http.post("/v1/chat/completions", json=body(name, words, **more))
            return asyncio.create_task(request)

        async def here() -> bool:
            if stage == "queued":
                return bool((await books.all())["qas.waiting"])
            return stage in await books.stages()

        await _value(books.replica.lengthen_way.remote(20.0 if stage == "way" else 0.0))
        await _value(books.replica.block_gate.remote(stage == "gate"))
        first = None
        if stage in ("queued", "waiting"):
            # A long prefill under way: what comes next waits for a batch, or for credit.
            first = ask("first", LONG_WORDS if stage == "queued" else 50)
            await until(lambda: _is_in(books, "prefill"), "the first request never started")
        words = LONG_WORDS if stage == "prefill" else 20
        request = ask(f"{stage}{more}", words)
        await until(here, f"the request was never {stage}")
        await leave(request)
        if first is not None:
            await leave(first)
        seconds = await books.seconds_to_close(10.0, blocked=stage == "gate")
    await _value(books.replica.block_gate.remote(False))
    print(f"{stage} {more}: gone after {seconds:.3f} s; a look at the books takes {look_s:.3f} s")
    # One step of the slow engine may still be under way; a busy machine is slow with everything.
    assert seconds < 1.0 + 0.25 + 10 * look_s, seconds


async def _is_in(books: Books, stage: str) -> bool:
    return stage in await books.stages()


async def _open_books() -> dict[str, int]:
    books = Books()
    await books.seconds_to_close(5.0)
    return await books.open()


async def _value(reference: Any) -> Any:
    return await reference


def test_nobody_waits_for_those_who_left(base_url: str, loop: asyncio.Runner) -> None:
    """Slots, credit and pool are free again: a request that needs all of it is served."""
    with httpx.Client(base_url=base_url, timeout=60.0) as http:
        answer = http.post("/v1/chat/completions", json=body("last", 20) | {"max_tokens": 2})
    assert answer.status_code == 200, answer.text
    assert loop.run(_open_books()) == {}
    assert serve.status().applications["default"].status == "RUNNING"
