"""Lines over a real socket on loopback: calls, tokens, broken lines, and what stands in for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from prism_ray.serving.line import (
    ActorLine,
    Line,
    LineAddress,
    LineCallFailed,
    LineLost,
    LineServer,
    open_line,
)

from .fake_ray import FakeActor


class Actor:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.open = asyncio.Event()

    async def double(self, number: int) -> int:
        return 2 * number

    async def wait(self) -> str:
        await self.open.wait()
        return "done"

    async def fail(self) -> None:
        raise ValueError("no")

    async def hear(self, word: str) -> None:
        self.told.append(word)

    async def secret(self) -> str:
        return "not on lines"


@pytest.fixture
async def actor() -> Actor:
    return Actor()


@pytest.fixture
async def address(actor: Actor) -> AsyncIterator[LineAddress]:
    server = LineServer(actor, ("double", "wait", "fail", "hear"))
    yield await server.address("127.0.0.1")
    server.close()


@pytest.fixture
async def line(address: LineAddress) -> AsyncIterator[Line]:
    line = await Line.connect(address)
    yield line
    line.close()


async def test_calls_are_answered_each_with_its_own_answer(line: Line) -> None:
    assert await asyncio.gather(*(line.call("double", n) for n in range(500))) == [
        2 * n for n in range(500)
    ]


async def test_a_call_that_waits_holds_up_no_other(line: Line, actor: Actor) -> None:
    waiting = line.call("wait")
    assert await line.call("double", 4) == 8
    actor.open.set()
    assert await waiting == "done"


async def test_calls_go_out_in_order(line: Line, actor: Actor) -> None:
    for word in "abc":
        line.tell("hear", word)
    await line.call("double", 1)
    assert actor.told == ["a", "b", "c"]


async def test_large_messages_arrive_whole(line: Line) -> None:
    text = "x" * 3_000_000
    assert len(await line.call("double", text)) == 6_000_000


async def test_what_the_actor_raises_fails_only_that_call(line: Line) -> None:
    with pytest.raises(LineCallFailed, match="no"):
        await line.call("fail")
    assert await line.call("double", 3) == 6


async def test_only_the_named_methods_are_on_the_line(line: Line) -> None:
    with pytest.raises(LineCallFailed, match="secret"):
        await line.call("secret")


async def test_a_cancelled_call_does_not_disturb_the_line(line: Line, actor: Actor) -> None:
    line.call("wait").cancel()
    actor.open.set()
    assert await line.call("double", 3) == 6


async def test_without_the_token_nothing_is_unpickled(address: LineAddress, actor: Actor) -> None:
    stranger = await Line.connect(replace(address, token=b"0" * 32))
    stranger.tell("hear", "evil")
    with pytest.raises(LineLost):
        await stranger.call("double", 1)
    assert actor.told == []


async def test_a_broken_line_fails_what_waits_and_what_comes(line: Line) -> None:
    waiting = line.call("wait")
    line.close()
    with pytest.raises(LineLost):
        await waiting
    assert line.lost
    with pytest.raises(LineLost):
        await line.call("double", 1)
    line.tell("hear", "nobody")


async def test_where_nobody_listens_calls_go_by_ray(address: LineAddress, actor: Actor) -> None:
    fake = FakeActor(actor)
    for where in (None, replace(address, port=1)):
        line = await open_line(where, fake)
        assert isinstance(line, ActorLine)
        assert await line.call("double", 3) == 6
