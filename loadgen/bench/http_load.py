"""A closed-loop HTTP client that costs little: keep-alive connections, one request at a time on each.

It reads no more of an answer than it must to know that it is complete. For measurements of a server;
``loadgen.client`` is the one that reads answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

CLOSE_WAIT_S = 30.0


class Load(NamedTuple):
    """What one run saw; latencies in seconds, in no particular order."""

    requests: int
    wall_s: float
    latency_s: list[float]
    first_byte_s: list[float]


class BadAnswer(RuntimeError):
    """An answer other than 200, or a connection that broke."""


class _Connection(asyncio.Protocol):
    """Sends what ``next_request`` gives until that is None."""

    def __init__(self, next_request: Callable[[], bytes | None]) -> None:
        self._next = next_request
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._left: int | None = None
        self._tail = b""
        self._sent_s = 0.0
        self._answering = False
        self.latency_s: list[float] = []
        self.first_byte_s: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        request = self._next()
        if request is None:
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)
            return
        self._head, self._left, self._answering = b"", None, False
        self._sent_s = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._left is None and not self._answering:
            if not self._head:
                self.first_byte_s.append(time.perf_counter() - self._sent_s)
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._begin(self._head[:end])
        if self._left is None:
            self._tail = (self._tail + data)[-5:]
            complete = self._tail == b"0\r\n\r\n"
        else:
            self._left -= len(data)
            complete = self._left <= 0
        if complete:
            self.latency_s.append(time.perf_counter() - self._sent_s)
            self._send()

    def _begin(self, head: bytes) -> None:
        if b" 200 " not in head[:16]:
            self._fail(BadAnswer(head.split(b"\r\n")[0].decode(errors="replace")))
        self._answering, self._tail = True, b""
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                self._left = int(line[15:])

    def _fail(self, error: BadAnswer) -> None:
        if not self.done.done():
            self.done.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(BadAnswer(f"the connection broke: {exc}"))


def request_bytes(port: int, path: str, body: bytes) -> bytes:
    """One POST of a JSON body."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def drive(port: int, connections: int, next_request: Callable[[], bytes | None]) -> Load:
    """Keep ``connections`` requests under way until ``next_request`` gives None. Raises BadAnswer."""
    loop = asyncio.get_running_loop()
    start_s = time.perf_counter()
    opened = [
        (await loop.create_connection(lambda: _Connection(next_request), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(connection.done for connection in opened))
    wall_s = time.perf_counter() - start_s
    latency_s = [value for connection in opened for value in connection.latency_s]
    first_byte_s = [value for connection in opened for value in connection.first_byte_s]
    return Load(len(latency_s), wall_s, latency_s, first_byte_s)
