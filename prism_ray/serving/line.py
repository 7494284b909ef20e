"""A line: calls to one actor over one socket, for what is said several times a request.

A Ray actor call costs each side about half a millisecond of CPU, a call on a line a tenth of that.
Everything rare stays with Ray, which also says where a line can be had and whether its actor lives.
Frames are pickled, as Ray's own messages are: so a line first asks for a token that only Ray hands out.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import pickle
import secrets
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from ray.exceptions import ActorUnavailableError

logger = logging.getLogger(__name__)

FRAME_LIMIT_BYTES = 64 << 20
CONNECT_TIMEOUT_S = 5.0
DEAD_PEER_S = 10
"""A peer whose machine is gone is noticed after about this long."""

_LENGTH = struct.Struct("<I")
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class LineAddress:
    """Where a line can be had. The token is a secret of the application."""

    host: str
    port: int
    token: bytes = field(repr=False)


class LineLost(ActorUnavailableError):  # type: ignore[misc]
    """The line broke, or could not be had. Whether the call arrived is unknown."""

    def __init__(self, why: str) -> None:
        super().__init__(why, None)


class LineCallFailed(RuntimeError):
    """The actor raised; the message is what it said."""


class _Frames(asyncio.Protocol, ABC):
    """Length-prefixed pickles on a socket; those of one turn of the event loop leave together."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _tell_dead_peers(transport.get_extra_info("socket"))

    def send(self, message: tuple[Any, ...]) -> None:
        """Dropped silently when the peer is gone: whoever waits for an answer is told."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._waiting.append(_LENGTH.pack(len(payload)))
        self._waiting.append(payload)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(waiting))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start, end = 0, len(self._buffer)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > FRAME_LIMIT_BYTES:
                logger.error("a frame of %d bytes on a line: closing it", length)
                self.close()
                return
            if end - start - _LENGTH.size < length:
                break
            start += _LENGTH.size
            frame = pickle.loads(self._buffer[start : start + length])
            start += length
            self.received(frame)
        del self._buffer[:start]

    @abstractmethod
    def received(self, message: tuple[Any, ...]) -> None:
        """What a frame held."""

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class LineServer:
    """Serves the named methods of ``target``, coroutines all, to those who know the token."""

    def __init__(self, target: Any, methods: Iterable[str]) -> None:
        self.methods = {name: getattr(target, name) for name in methods}
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()

    async def address(self, host: str) -> LineAddress:
        """Where it listens; starts listening on ``host`` with the first call. Raises OSError."""
        async with self._starting:
            if self._server is None:
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(lambda: _Served(self), host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return LineAddress(host, port, self.token)

    def close(self) -> None:
        """Stop listening; open lines stay."""
        if self._server is not None:
            self._server.close()


class _Served(_Frames):
    """The actor's end of one line."""

    def __init__(self, server: LineServer) -> None:
        super().__init__()
        self._server = server
        self._known = False

    def data_received(self, data: bytes) -> None:
        if self._known:
            super().data_received(data)
            return
        self._buffer += data
        if len(self._buffer) < _TOKEN_BYTES:
            return
        token, rest = bytes(self._buffer[:_TOKEN_BYTES]), bytes(self._buffer[_TOKEN_BYTES:])
        self._buffer.clear()
        if not hmac.compare_digest(token, self._server.token):
            logger.warning("somebody without the token tried to use a line")
            self.close()
            return
        self._known = True
        super().data_received(rest)

    def received(self, message: tuple[Any, ...]) -> None:
        number, name, arguments = message
        method = self._server.methods.get(name)
        if method is None:
            self.send((number, False, f"no method {name!r} on this line"))
            return
        task = self._loop.create_task(self._answer(number, method, arguments))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    async def _answer(self, number: int, method: Any, arguments: tuple[Any, ...]) -> None:
        try:
            answer = (number, True, await method(*arguments))
        except Exception as error:
            logger.exception("a call on a line failed")
            answer = (number, False, repr(error))
        if number >= 0:
            self.send(answer)


class Line(_Frames):
    """The caller's end. Calls go out in order; answers come as they are ready."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self.lost = False

    @classmethod
    async def connect(cls, address: LineAddress) -> Line:
        """Raises LineLost."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, line = await loop.create_connection(cls, address.host, address.port)
        except (OSError, TimeoutError) as error:
            raise LineLost(f"no line to {address.host}:{address.port}: {error!r}") from None
        transport.write(address.token)
        return line

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """The answer, or LineLost or LineCallFailed; a cancelled call is not taken back."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost:
            future.set_exception(LineLost("the line is broken"))
            return future
        number = next(self._numbers)
        self._calls[number] = future
        self.send((number, method, arguments))
        return future

    def tell(self, method: str, *arguments: Any) -> None:
        """A call whose answer nobody wants; lost with the line."""
        if not self.lost:
            self.send((-1, method, arguments))

    def received(self, message: tuple[Any, ...]) -> None:
        number, done, value = message
        future = self._calls.pop(number, None)
        if future is None or future.done():
            return
        if done:
            future.set_result(value)
        else:
            future.set_exception(LineCallFailed(value))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(LineLost(f"the line broke: {exc!r}"))


class ActorLine:
    """The same by Ray actor calls: where no socket can be had, and for tests."""

    lost = False

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """The answer, or what Ray raises."""
        return asyncio.ensure_future(_answer_of(getattr(self._actor, method).remote(*arguments)))

    def tell(self, method: str, *arguments: Any) -> None:
        getattr(self._actor, method).remote(*arguments)

    def close(self) -> None: ...


AnyLine = Line | ActorLine


async def open_line(address: LineAddress | None, actor: Any) -> AnyLine:
    """A line to ``actor``; by Ray where it has no address or nothing answers there."""
    if address is None:
        return ActorLine(actor)
    try:
        return await Line.connect(address)
    except LineLost as error:
        logger.warning("%s: talking by Ray calls instead", error)
        return ActorLine(actor)


async def _answer_of(reference: Any) -> Any:
    return await reference


def _tell_dead_peers(sock: Any) -> None:
    """Have the kernel end a connection whose other machine is gone without a word."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", DEAD_PEER_S // 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", DEAD_PEER_S // 2),
        ("TCP_USER_TIMEOUT", DEAD_PEER_S * 1000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
