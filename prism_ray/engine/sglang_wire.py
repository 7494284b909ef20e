"""How a replica and its engine process talk: length-prefixed msgpack frames on one socket pair.

Framing and the names of the messages only; who sends what and when is in ``sglang`` (the replica's
side) and ``sglang_host`` (the engine's side).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any

import msgpack

FRAME_LIMIT_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")

Frame = list[Any]
"""``[kind, *fields]``."""


class ToHost(StrEnum):
    """What the replica sends, with the fields that follow."""

    START = "start"  # server_args
    SUBMIT = "submit"  # request_id, endpoint, body, prompt_ids, hints, cache_salt
    ABORT = "abort"  # request_id
    LOAD = "load"  # question number
    FLUSH = "flush"  # question number
    WAKE = "wake"  # question number
    STOP = "stop"


class ToReplica(StrEnum):
    """What the engine's process sends, with the fields that follow."""

    READY = "ready"  # EngineInfo as a mapping
    FAILED = "failed"  # why the engine did not start
    ACCEPTED = "accepted"  # request_id
    REFUSED = "refused"  # request_id, status, OpenAI error body
    CHUNK = "chunk"  # request_id, JSON bytes of an OpenAI object, output tokens so far
    ENDED = "ended"  # request_id, ResponseEnd fields
    ANSWER = "answer"  # question number, value


class BrokenFrame(RuntimeError):
    """Bytes that no peer of ours writes: the stream cannot be followed any further."""


def encode(kind: str, *fields: Any) -> bytes:
    """One frame; raises BrokenFrame above FRAME_LIMIT_BYTES."""
    payload: bytes = msgpack.packb([str(kind), *fields])
    if len(payload) > FRAME_LIMIT_BYTES:
        raise BrokenFrame(f"a {kind} frame of {len(payload)} bytes")
    return _LENGTH.pack(len(payload)) + payload


def decode(payload: bytes) -> Frame:
    """Inverse of ``encode`` without the length; raises BrokenFrame."""
    try:
        frame = msgpack.unpackb(payload)
    except Exception as error:
        raise BrokenFrame(f"not msgpack: {error}") from None
    if not isinstance(frame, list) or not frame or not isinstance(frame[0], str):
        raise BrokenFrame(f"no frame: {str(frame)[:80]}")
    return frame


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """Frames until the peer closes; a frame cut off by its death is dropped."""
    try:
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > FRAME_LIMIT_BYTES:
                raise BrokenFrame(f"a frame of {length} bytes")
            yield decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return


def read_frame(connection: socket.socket) -> Frame | None:
    """One frame from a blocking socket; None if the peer closed first."""
    head = _read_exactly(connection, _LENGTH.size)
    payload = head and _read_exactly(connection, _LENGTH.unpack(head)[0])
    return decode(payload) if payload else None


def _read_exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


class FrameSender:
    """Sends frames in call order; those of one turn of the event loop leave in one system call."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def send(self, kind: str, *fields: Any) -> None:
        """Queue one frame; dropped silently if the peer is gone (its reader finds out)."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(encode(kind, *fields))

    def flush(self) -> None:
        """Hand everything queued to the transport now."""
        waiting, self._waiting = self._waiting, []
        if waiting and not self._writer.is_closing():
            self._writer.write(b"".join(waiting))

    def close(self) -> None:
        self.flush()
        self._writer.close()
