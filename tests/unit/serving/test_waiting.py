"""Waiting for an event with a limit."""

from __future__ import annotations

import asyncio

import pytest

from prism_ray.serving.waiting import set_within

pytestmark = pytest.mark.virtual_time


async def test_it_says_whether_the_event_came_in_time() -> None:
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    began_s = loop.time()
    assert not await set_within(event, 5.0)
    assert loop.time() - began_s == pytest.approx(5.0)
    loop.call_later(1.0, event.set)
    assert await set_within(event, 5.0)
    assert loop.time() - began_s == pytest.approx(6.0)
    assert await set_within(event, 0.0)


async def test_without_a_limit_it_waits_and_a_limit_in_the_past_does_not() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await set_within(event, None)
    event.clear()
    assert not await set_within(event, -1.0)


async def test_no_task_is_started_for_it() -> None:
    waiting = asyncio.create_task(set_within(asyncio.Event(), 5.0))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {waiting, asyncio.current_task()}
    waiting.cancel()
