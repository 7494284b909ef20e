"""How an answer is written to HTTP: headers, server-sent events, and a client that may read slowly.

A stream opens when the engine has taken the request, or with comments when that takes long. From then
on no status can be set: every error is an event, and no ``[DONE]`` follows it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from prism_ray.model import Decision
from prism_ray.serving.errors import ApiError, internal
from prism_ray.serving.inference import Inference

logger = logging.getLogger(__name__)

Payload = dict[str, Any]
Payloads = AsyncGenerator[tuple[Payload, ...], None]
FirstPayloads = asyncio.Future[tuple[Payload, ...]]

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def answer_headers(decision: Decision | None) -> dict[str, str]:
    """What the headers say of a decision; nothing while there is none."""
    if decision is None:
        return {}
    return {f"x-prism-{name.replace('_', '-')}": str(v) for name, v in _head(decision).items()}


async def server_sent_events(
    inference: Inference,
    first: FirstPayloads,
    rest: Payloads,
    *,
    told: Decision | None,
    keepalive_s: float,
) -> AsyncGenerator[bytes, None]:
    """Server-sent events; nothing waits for what comes after it.

    Comments while ``first`` is awaited. What the headers did not say (``told`` is not the decision
    that was carried out) is in the first chunk's ``prism`` object. The report has a chunk of its own
    at the end, with no choices, as OpenAI sends usage.
    """
    try:
        while not (await asyncio.wait((first,), timeout=keepalive_s))[0]:
            yield KEEP_ALIVE
        items = first.result()
        decision = inference.decision
        if decision is not None and decision is not told:
            items = (items[0] | {"prism": _head(decision)}, *items[1:])
        yield _events(items)
        async for items in rest:
            yield _events(items)
        if inference.wants_report:
            last = items[-1]
            head = {
                name: last[name] for name in ("id", "object", "created", "model") if name in last
            }
            yield _events((head | {"choices": [], "prism": inference.report()},))
        yield DONE
    except ApiError as error:
        yield _events((error.event,))
    except Exception:
        logger.exception("request %s failed in its stream", inference.request_id)
        yield _events((internal("the server failed").event,))
    finally:
        await drop(first, rest)


async def drop(first: FirstPayloads, rest: Payloads) -> None:
    """End an answer that nobody will read on, or that has ended."""
    if not first.done():
        first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await rest.aclose()


class EventStream(StreamingResponse):
    """A stream whose client may stop reading for ``stall_s``; then the connection is closed.

    Nothing is read ahead of the client: what it does not take stays where it is generated. The body
    generator is closed on every way out, and ``end`` awaited: a generator that was never started
    would do nothing about it.
    """

    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        stall_s: float,
        headers: dict[str, str],
        inference: Inference,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._content = content
        self._stall_s = stall_s
        self._inference = inference
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient_send(message: Message) -> None:
            try:
                async with asyncio.timeout(self._stall_s):
                    await send(message)
            except TimeoutError:
                self._inference.stalled = True
                # An OSError is what a broken connection raises here; the server then closes it.
                raise ConnectionAbortedError("the client does not read") from None

        try:
            await super().__call__(scope, receive, patient_send)
        except ConnectionAbortedError:
            logger.info("request %s: the client does not read", self._inference.request_id)
        finally:
            await self._content.aclose()
            await self._end()


def _head(decision: Decision) -> dict[str, Any]:
    return {
        "replica": decision.replica,
        "lane": str(decision.lane),
        "queue_ms": round(decision.queue_s * 1000, 1),
    }


def _events(payloads: tuple[Payload, ...]) -> bytes:
    return b"".join(
        b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"
        for payload in payloads
    )
