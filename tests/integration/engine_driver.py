"""Drives a real engine in tests: makes calls, collects its events, waits for what must happen."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from prism_ray.engine.base import (
    EngineCall,
    EngineDied,
    EngineEvent,
    EngineInfo,
    Finished,
    PrefillEnded,
    PrefillStarted,
    ResponseChunk,
)
from prism_ray.engine.sglang import SglangEngine

POOL_TOKENS = 6000
SERVER_ARGS = {
    "max_total_tokens": POOL_TOKENS,
    "context_length": 4096,
    "chunked_prefill_size": 512,
    "max_running_requests": 8,
    "constrained_json_disable_any_whitespace": True,  # random weights like whitespace
    "log_level": "error",
}


def tiny_engine(model: Path, **changes: Any) -> SglangEngine:
    return SglangEngine(str(model), {**SERVER_ARGS, **changes}, cpu=True)


def some_ids(count: int, seed: int) -> list[int]:
    """Token ids that no other seed shares a prefix with."""
    chooser = random.Random(seed)
    return [chooser.randrange(100, 40_000) for _ in range(count)]


def chat(max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "never read: the ids are the prompt"}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        **fields,
    }


def completion(max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": "shown",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        **fields,
    }


def call(endpoint: Any, body: dict[str, Any], prompt_ids: list[int], **fields: Any) -> EngineCall:
    return EngineCall(uuid.uuid4().hex, endpoint, body, prompt_ids, **fields)


async def all_of(stream: AsyncIterator[ResponseChunk]) -> list[ResponseChunk]:
    return [chunk async for chunk in stream]


class Driver:
    """An engine that runs, and every event it has sent."""

    def __init__(self, engine: SglangEngine, info: EngineInfo) -> None:
        self.engine = engine
        self.info = info
        self.log: list[EngineEvent] = []
        self.died: EngineDied | None = None
        self._news = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for event in self.engine.events():
                async with self._news:
                    self.log.append(event)
                    self._news.notify_all()
        except EngineDied as error:
            self.died = error

    async def answer(self, made: EngineCall) -> list[ResponseChunk]:
        return await all_of(await self.engine.submit(made))

    async def until(self, holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(holds), timeout_s)

    async def finished(self, made: EngineCall) -> Finished:
        await self.until(lambda: bool(self.of(made, Finished)))
        (finish,) = self.of(made, Finished)
        assert isinstance(finish, Finished)
        return finish

    async def started(self, made: EngineCall) -> PrefillStarted:
        await self.until(lambda: bool(self.of(made, PrefillStarted)))
        (start,) = self.of(made, PrefillStarted)
        assert isinstance(start, PrefillStarted)
        return start

    def of(self, made: EngineCall, kind: type) -> list[EngineEvent]:
        return [e for e in self.log if e.request_id == made.request_id and isinstance(e, kind)]

    def kinds(self, made: EngineCall) -> list[type]:
        return [type(e) for e in self.log if e.request_id == made.request_id]

    async def idle_pool_tokens(self) -> int:
        """Tokens that requests hold once nothing runs; SGLang's snapshot may lag a moment."""
        load = await self.engine.load()
        for _ in range(50):
            if load.pool_used_tokens == 0:
                break
            await asyncio.sleep(0.1)
            load = await self.engine.load()
        assert (load.running, load.waiting) == (0, 0)
        return load.pool_used_tokens


FULL_LIFE = [PrefillStarted, PrefillEnded, Finished]
