"""An engine that answers at once: measurements of the path must not pay for an engine's own work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from loadgen.bench.answers import streamed_answer, whole_answer
from prism_ray.engine.base import (
    CacheTold,
    EngineCall,
    EngineEvent,
    EngineInfo,
    EngineLoad,
    Finished,
    PrefillEnded,
    PrefillStarted,
    ResponseChunk,
)
from prism_ray.model import Outcome


class InstantEngine:
    """The engine protocol without an engine: admits, prefills, answers and forgets in ``submit``."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[EngineEvent | None] = asyncio.Queue()

    async def start(self) -> EngineInfo:
        return EngineInfo(
            model="simulated",
            pool_tokens=400_000,
            context_length=40_960,
            max_running=1024,
            chunked_prefill_tokens=8192,
            max_prefill_tokens=8192,
            page_size=1,
            takes_hints=True,
        )

    async def submit(self, call: EngineCall) -> AsyncIterator[ResponseChunk]:
        now, name, prompt = time.monotonic(), call.request_id, len(call.prompt_ids)
        output = int(call.body["max_tokens"])
        self._events.put_nowait(PrefillStarted(name, now, prompt, 0))
        self._events.put_nowait(PrefillEnded(name, now))
        self._events.put_nowait(Finished(name, now, Outcome.FINISHED, prompt, 0, output))
        return _chunks(call)

    async def abort(self, request_id: str) -> None: ...

    async def events(self) -> AsyncIterator[EngineEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    def follow_cache(self, told: CacheTold) -> None: ...

    async def snapshot_cache(self) -> None: ...

    async def load(self) -> EngineLoad:
        return EngineLoad()

    async def flush_cache(self) -> bool:
        return True

    async def stop(self) -> None:
        self._events.put_nowait(None)


async def _chunks(call: EngineCall) -> AsyncIterator[ResponseChunk]:
    if not call.body.get("stream"):
        yield ResponseChunk(whole_answer(call.request_id), int(call.body["max_tokens"]))
        return
    first, rest = streamed_answer(call.request_id)
    for payload in first:
        yield ResponseChunk(payload, 1)
    await asyncio.sleep(0)  # the first token is there before the second
    for payload in rest:
        yield ResponseChunk(payload, 1)
