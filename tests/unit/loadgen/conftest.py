"""A tiny OpenAI-like server for tests of clients: a real one, on a free port of the loopback.

What it does with a request is in the request: the last message is the name of a behaviour.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

REPORT = {
    "order": ["b", "a"],
    "cached_tokens_predicted": 30,
    "cached_tokens": 32,
    "lane": "hot",
    "replica": "r0",
    "ttft": {"queue_wait_s": 0.01, "prefill_s": 0.02, "first_token_s": 0.01, "total_s": 0.04},
}
USAGE = {
    "prompt_tokens": 64,
    "completion_tokens": 3,
    "total_tokens": 67,
    "prompt_tokens_details": {"cached_tokens": 32},
}
HEADERS = {"x-prism-replica": "r0", "x-prism-lane": "cold", "x-prism-queue-ms": "12.5"}

PAUSE_S = 0.02
"""Before each piece of a streamed answer."""


class Peer:
    """The server's address, what it answers with and what it was asked."""

    report = REPORT
    usage = USAGE

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.flushes = 0
        self.busy_flushes = 0
        self.connections: set[tuple[str, int]] = set()
        self.go = threading.Event()
        """Until then answers that are ``held`` have no token."""
        self.taken = threading.Semaphore(0)
        """One for each piece of an answer ``in turn`` that its client has read; the next waits for it."""


def _chunk(**fields: Any) -> bytes:
    base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    return f"data: {json.dumps({**base, **fields})}\n\n".encode()


def _delta(text: str, finish: str | None = None) -> bytes:
    return _chunk(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


async def _stream(behaviour: str, peer: Peer) -> AsyncIterator[bytes]:
    if behaviour == "comments":
        yield b": waiting\n\n: waiting\n\n"
        await asyncio.sleep(0.05)
    yield _delta("")
    if behaviour == "held":
        await asyncio.to_thread(peer.go.wait, timeout=30)
    for piece in ("Pa", "r", "is"):
        if behaviour == "in turn" and piece != "Pa":
            await asyncio.to_thread(peer.taken.acquire, timeout=10)
        await asyncio.sleep(PAUSE_S)
        yield _delta(piece, "stop" if piece == "is" else None)
        if behaviour == "error":
            yield b'data: {"error": {"message": "replica died", "code": "replica_died"}}\n\n'
            return
        if behaviour == "cut":
            return
        if behaviour == "crash":
            raise RuntimeError("the connection breaks here")
    yield _chunk(choices=[], usage=USAGE)
    yield _chunk(choices=[], prism=REPORT)
    yield b"data: [DONE]\n\n"


def build(peer: Peer) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": "tiny", "object": "model", "created": 1, "owned_by": "tests"}
        return {"object": "list", "data": [model]}

    @app.post("/flush_cache")
    async def flush() -> Any:
        if peer.busy_flushes:
            peer.busy_flushes -= 1
            return JSONResponse({"success": False}, 409)
        peer.flushes += 1
        return {"success": True}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        body = await request.json()
        peer.bodies.append(body)
        if request.client is not None:
            peer.connections.add((request.client.host, request.client.port))
        content = body["messages"][-1]["content"]
        behaviour = content if isinstance(content, str) else ""
        if behaviour == "full":
            error = {"message": "queue full", "type": "overloaded", "code": "queue_full"}
            return JSONResponse({"error": error}, 429, {"retry-after": "3"})
        if behaviour == "broken":
            return JSONResponse("oops", 500)
        if not body.get("stream"):
            message = {"role": "assistant", "content": "Paris"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return JSONResponse({"choices": [choice], "usage": USAGE}, headers=HEADERS)
        return StreamingResponse(
            _stream(behaviour, peer), media_type="text/event-stream", headers=HEADERS
        )

    return app


@pytest.fixture
def peer() -> Iterator[Peer]:
    """The peer, up during one test, in a thread of its own."""
    peer = Peer()
    config = uvicorn.Config(build(peer), host="127.0.0.1", port=0, log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    peer.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield peer
    finally:
        peer.go.set()
        server.should_exit = True
        thread.join(5)
