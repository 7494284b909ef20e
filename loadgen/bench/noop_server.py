"""A server that answers every request at once with a canned stream; a process of its own. No engine.

For measurements of load generators: it costs little beside what is measured.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import cast

from loadgen.bench.answers import OUTPUT_TOKENS, events, streamed_answer

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"x-prism-replica: none\r\n\r\n"
)
_FLUSHED = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_USAGE = {
    "prompt_tokens": 300,
    "completion_tokens": OUTPUT_TOKENS,
    "total_tokens": 300 + OUTPUT_TOKENS,
    "prompt_tokens_details": {"cached_tokens": 150},
}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _answer() -> tuple[bytes, bytes]:
    first, rest = streamed_answer("noop")
    usage = b"data: " + json.dumps({"choices": [], "usage": _USAGE}).encode() + b"\n\n"
    end = _chunk(events(rest) + usage + b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return _HEAD + _chunk(events(first)), end


class _Noop(asyncio.Protocol):
    """HTTP as far as load generators speak it: one request at a time, bodies with a length."""

    def __init__(self, first: bytes, rest: bytes) -> None:
        self._first, self._rest = first, rest
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._reply(head)

    def _reply(self, head: bytes) -> None:
        assert self._transport is not None
        if b"/flush_cache " in head.split(b"\r\n", 1)[0]:
            self._transport.write(_FLUSHED)
            return
        self._transport.write(self._first)
        asyncio.get_running_loop().call_soon(self._transport.write, self._rest)


async def _serve(line: Connection) -> None:
    first, rest = _answer()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Noop(first, rest), "127.0.0.1", 0, backlog=4096)
    line.send(server.sockets[0].getsockname()[1])
    async with server:
        await loop.run_in_executor(None, line.poll, None)  # until the other end goes


def _main(line: Connection) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(line))


@contextmanager
def noop_server() -> Iterator[str]:
    """The server's address, while it runs."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=_main, args=(far,), daemon=True)
    process.start()
    far.close()
    try:
        yield f"http://127.0.0.1:{near.recv()}"
    finally:
        near.close()
        process.join(5)
        if process.is_alive():
            process.terminate()
