"""How answers are written: events, errors after the start, comments, and clients that read slowly."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from prism_ray.model import Decision, Lane
from prism_ray.serving.errors import ApiError, deadline_passed, no_replica, queue_full
from prism_ray.serving.framing import EventStream, Payloads, answer_headers, server_sent_events
from prism_ray.serving.inference import Inference
from prism_ray.serving.messages import Answered

CHUNK = {"id": "1", "object": "chat.completion.chunk", "choices": []}


def decision(replica: str = "r1") -> Decision:
    return Decision(
        request_id="q",
        attempt=0,
        epoch="e",
        replica=replica,
        plan_version=1,
        position=0,
        order=(),
        lane=Lane.HOT,
        queue_s=0.1234,
        predicted_cached_tokens=0,
    )


def request(**more: Any) -> Inference:
    none = cast(Any, None)
    return Inference("chat", {}, none, 1, b"t", 0.0, decision=decision(), stream=True, **more)


async def payloads_of(*steps: Any) -> Payloads:
    """Yields tuples, sleeps for numbers, raises exceptions."""
    for step in steps:
        if isinstance(step, Exception):
            raise step
        if isinstance(step, float):
            await asyncio.sleep(step)
        else:
            yield step


async def written(
    inference: Inference, *steps: Any, told: Decision | None = None, keepalive_s: float = 5.0
) -> list[Any]:
    payloads = payloads_of(*steps)
    first = asyncio.ensure_future(anext(payloads))
    told = inference.decision if told is None else told
    stream = server_sent_events(inference, first, payloads, told=told, keepalive_s=keepalive_s)
    text = b"".join([part async for part in stream]).decode()
    assert text.endswith("\n\n")
    found: list[Any] = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        data = event.removeprefix("data: ")
        found.append(json.loads(data) if data.startswith("{") else data)
    return found


@pytest.mark.virtual_time
class TestEvents:
    async def test_a_stream_ends_with_done(self) -> None:
        assert await written(request(), (CHUNK, CHUNK), (CHUNK,)) == [CHUNK] * 3 + ["[DONE]"]

    @pytest.mark.parametrize(
        ("error", "status", "code"),
        [
            (deadline_passed(), 408, "deadline"),
            (queue_full(2.0), 429, "queue_full"),
            (no_replica(2.0), 503, "no_replica"),
            (ApiError(400, "refused", code="x"), 400, "x"),
            (RuntimeError("a bug"), 500, "internal_error"),
        ],
    )
    @pytest.mark.parametrize("before", [[], [(CHUNK,)]], ids=["first", "midstream"])
    async def test_an_error_is_the_last_event_and_no_done_follows(
        self, error: Exception, status: int, code: str, before: list[Any]
    ) -> None:
        found = await written(request(), *before, error)
        assert found[:-1] == [CHUNK] * len(before)
        assert (found[-1]["error"]["status"], found[-1]["error"]["code"]) == (status, code)
        assert "a bug" not in found[-1]["error"]["message"]

    async def test_comments_come_until_the_first_payload(self) -> None:
        found = await written(request(), 0.25, (CHUNK,), 0.25, (CHUNK,), keepalive_s=0.1)
        assert found == [": keep-alive"] * 2 + [CHUNK, CHUNK, "[DONE]"]

    async def test_what_the_headers_did_not_say_is_in_the_first_chunk(self) -> None:
        said = {"replica": "r1", "lane": "hot", "queue_ms": 123.4}
        for told in (decision("r2"), decision("r1")):  # carried out: another decision object
            found = await written(request(), (CHUNK, CHUNK), told=told)
            assert found == [CHUNK | {"prism": said}, CHUNK, "[DONE]"]

    def test_headers_say_the_same(self) -> None:
        assert answer_headers(None) == {}
        assert answer_headers(decision()) == {
            "x-prism-replica": "r1",
            "x-prism-lane": "hot",
            "x-prism-queue-ms": "123.4",
        }

    async def test_closing_the_stream_ends_the_answer(self) -> None:
        closed = asyncio.Event()

        async def endless() -> Payloads:
            try:
                while True:
                    yield (CHUNK,)
                    await asyncio.sleep(0)
            finally:
                closed.set()

        for read in (1, 3):
            closed.clear()
            payloads = endless()
            first = asyncio.ensure_future(anext(payloads))
            stream = server_sent_events(request(), first, payloads, told=None, keepalive_s=5.0)
            for _ in range(read):
                await anext(stream)
            await stream.aclose()
            assert closed.is_set()

    async def test_closing_a_stream_that_waits_cancels_the_answer(self) -> None:
        cancelled = asyncio.Event()

        async def never() -> Payloads:
            try:
                await asyncio.sleep(60)
                yield (CHUNK,)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        payloads = never()
        first = asyncio.ensure_future(anext(payloads))
        stream = server_sent_events(request(), first, payloads, told=None, keepalive_s=0.05)
        assert await anext(stream) == b": keep-alive\n\n"
        await stream.aclose()
        assert cancelled.is_set()


class Served:
    """An EventStream behind a real HTTP server; ``sent`` bytes were taken from its generator."""

    def __init__(self, stall_s: float) -> None:
        self.inference = request()
        self.sent = 0
        self.closed = asyncio.Event()
        self.ended = asyncio.Event()
        self._stall_s = stall_s

    async def _generate(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                self.sent += 100_000
                await asyncio.sleep(0)  # as an answer does that waits for tokens
                yield b"x" * 100_000
        finally:
            self.closed.set()

    async def _end(self) -> None:
        self.ended.set()

    async def _answer(self, _: Request) -> Response:
        return EventStream(self._generate(), self._stall_s, {}, self.inference, self._end)

    async def connect(self) -> tuple[socket.socket, uvicorn.Server, asyncio.Task[None]]:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        app = Starlette(routes=[Route("/", self._answer)])
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, listening.getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return client, server, task


class TestSlowReaders:
    async def test_who_does_not_read_is_cut_off_and_nothing_is_read_ahead(self) -> None:
        served = Served(stall_s=0.5)
        client, server, task = await served.connect()
        began = time.monotonic()
        await asyncio.wait_for(served.ended.wait(), 10)
        assert 0.4 < time.monotonic() - began < 5
        assert served.closed.is_set()
        assert served.inference.stalled
        assert served.sent < 20_000_000  # sockets' buffers, and one chunk
        client.close()
        server.should_exit = True
        await task

    async def test_who_reads_slowly_but_reads_is_served(self) -> None:
        served = Served(stall_s=0.8)
        client, server, task = await served.connect()
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        while time.monotonic() - began < 2.0:
            for _ in range(50):
                assert await loop.sock_recv(client, 65_536)
            await asyncio.sleep(0.05)
        assert not served.inference.stalled
        assert not served.closed.is_set()
        client.close()
        await asyncio.wait_for(served.ended.wait(), 10)
        assert not served.inference.stalled
        server.should_exit = True
        await task


class TestSpacing:
    def test_the_time_between_tokens_is_that_of_one_choice(self) -> None:
        streamed = request(choices=2, first_payload_s=1.0, last_payload_s=2.0)
        assert streamed.inter_token_s() is None, "it has not ended"
        streamed.answered = Answered(9, 0, 22)
        assert streamed.inter_token_s() == pytest.approx(0.1)
        streamed.answered = Answered(9, 0, 2)
        assert streamed.inter_token_s() is None, "one token each"
