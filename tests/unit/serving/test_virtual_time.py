"""The event loop that leaps: what is due first comes first, and a test that would hang fails."""

from __future__ import annotations

import asyncio
import time

import pytest

from .virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


async def test_an_hour_passes_at_once() -> None:
    loop = asyncio.get_running_loop()
    began_s, really_s = loop.time(), time.monotonic()
    order: list[tuple[str, float]] = []

    async def after(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        order.append((name, loop.time() - began_s))

    await asyncio.gather(after("last", 3600.0), after("first", 0.25), after("second", 0.5))
    assert [name for name, _ in order] == ["first", "second", "last"]
    assert [at_s for _, at_s in order] == pytest.approx([0.25, 0.5, 3600.0], abs=1e-6)
    assert time.monotonic() - really_s < 60


async def test_what_is_busy_takes_hardly_any_time() -> None:
    began_s = asyncio.get_running_loop().time()
    late = asyncio.create_task(asyncio.sleep(0.001))
    time.sleep(0.01)  # noqa: ASYNC251 - the machine's time, not the loop's
    for _ in range(100):
        await asyncio.sleep(0)
    assert not late.done()
    assert asyncio.get_running_loop().time() - began_s < 1e-6
    await late


async def test_what_would_run_in_a_thread_has_run() -> None:
    began_s = asyncio.get_running_loop().time()
    assert await asyncio.to_thread(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 / 0)
    assert asyncio.get_running_loop().time() - began_s < 1e-6


async def test_a_delay_that_rounding_swallows_passes_all_the_same() -> None:
    loop = asyncio.get_running_loop()
    due_s = loop.time() + 1e-13
    async with asyncio.timeout(1.0):
        while loop.time() < due_s:  # noqa: ASYNC110 - as what asks a clock does
            await asyncio.sleep(due_s - loop.time())


def test_waiting_for_ever_is_an_error() -> None:
    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        pytest.raises(RuntimeError, match="nothing is due"),
    ):
        runner.run(asyncio.Event().wait())
