"""Frames between a replica and its engine process."""

from __future__ import annotations

import asyncio
import socket

import pytest

from prism_ray.engine.sglang_wire import (
    BrokenFrame,
    Frame,
    FrameSender,
    ToHost,
    decode,
    encode,
    frames,
    read_frame,
)


async def _received(data: bytes) -> list[Frame]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return [frame async for frame in frames(reader)]


async def test_frames_come_back_whole_and_in_order() -> None:
    sent = [encode(ToHost.ABORT, "a" * 32), encode(ToHost.SUBMIT, "b", {"x": [1, None]}, b"\xff")]
    assert await _received(b"".join(sent)) == [
        ["abort", "a" * 32],
        ["submit", "b", {"x": [1, None]}, b"\xff"],
    ]


async def test_a_frame_cut_off_by_a_death_is_dropped() -> None:
    whole, cut = encode(ToHost.STOP), encode(ToHost.LOAD, 7)
    assert await _received(whole + cut[:-1]) == [["stop"]]
    assert await _received(whole + cut[:2]) == [["stop"]]


@pytest.mark.parametrize("payload", [b"\xc1", b"\x90", b"\x93\x01\x02\x03", b"\xa1x"])
def test_bytes_of_a_stranger_are_refused(payload: bytes) -> None:
    with pytest.raises(BrokenFrame):
        decode(payload)


async def test_a_length_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(BrokenFrame, match="bytes"):
        await _received(b"\xff\xff\xff\xff")


def test_a_blocking_socket_gives_one_frame_or_none() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(encode(ToHost.START, {"k": 1}) + encode(ToHost.STOP))
        assert read_frame(ours) == ["start", {"k": 1}]
        assert read_frame(ours) == ["stop"]
        theirs.close()
        assert read_frame(ours) is None


async def test_frames_of_one_turn_leave_together_and_keep_their_order() -> None:
    ours, theirs = socket.socketpair()
    reader, kept = await asyncio.open_connection(sock=theirs)
    _, writer = await asyncio.open_connection(sock=ours)
    sender = FrameSender(writer)
    written: list[bytes] = []
    original = writer.write
    writer.write = lambda data: (written.append(data), original(data))[1]  # type: ignore[assignment]
    for number in range(5):
        sender.send(ToHost.LOAD, number)
    await asyncio.sleep(0)
    sender.send(ToHost.STOP)
    sender.close()
    assert [frame async for frame in frames(reader)] == [
        *(["load", number] for number in range(5)),
        ["stop"],
    ]
    assert len(written) == 2
    kept.close()
