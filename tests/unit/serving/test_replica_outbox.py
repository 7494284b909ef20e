"""What lies between the engine and the reader of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prism_ray.serving.outbox import SPACING_S, Outbox, ReaderStalled

pytestmark = pytest.mark.virtual_time


async def read(outbox: Outbox) -> list[tuple[dict[str, Any], ...]]:
    return [batch async for batch in outbox]


class TestOutbox:
    async def test_the_first_item_waits_for_nothing(self) -> None:
        outbox = Outbox(1.0)
        reader = asyncio.create_task(anext(outbox))
        await asyncio.sleep(0)
        await outbox.put({"n": 0})
        assert await asyncio.wait_for(reader, 0.1) == ({"n": 0},)

    async def test_what_is_ready_goes_together_and_nothing_is_lost(self) -> None:
        outbox = Outbox(1.0, items_max=4)
        reader = asyncio.create_task(read(outbox))

        async def write(first: int) -> None:
            for n in range(first, first + 20):
                await outbox.put({"n": n})
                if n % 7 == 0:
                    await asyncio.sleep(0)

        await asyncio.gather(write(0), write(100))
        outbox.close()
        batches = await reader
        assert sorted(item["n"] for b in batches for item in b) == [*range(20), *range(100, 120)]
        assert 2 <= max(len(b) for b in batches) <= 4

    async def test_batches_have_a_distance_but_the_first_and_the_last_wait_for_nothing(
        self,
    ) -> None:
        now = 100.0
        outbox = Outbox(1.0, clock=lambda: now)
        await outbox.put({"n": 0})
        assert await asyncio.wait_for(anext(outbox), 0.1) == ({"n": 0},)
        await outbox.put({"n": 1})
        second = asyncio.create_task(anext(outbox))
        await asyncio.sleep(0)
        await outbox.put({"n": 2})
        assert await second == ({"n": 1}, {"n": 2})
        now += SPACING_S
        await outbox.put({"n": 3})
        third = asyncio.create_task(anext(outbox))
        await asyncio.sleep(0)
        await outbox.put({"n": 4})
        assert await third == ({"n": 3},)
        fourth = asyncio.create_task(anext(outbox))
        await asyncio.sleep(0)
        assert not outbox.ended
        outbox.close()
        assert await fourth == ({"n": 4},)
        assert outbox.ended

    async def test_one_can_look_for_a_beginning_without_taking_it(self) -> None:
        outbox = Outbox(1.0)
        assert not await outbox.wait(0.01)
        await outbox.put({"n": 0})
        assert await outbox.wait(0.01)
        assert len(outbox) == 1
        broken = Outbox(1.0)
        broken.close(ValueError("broken"))
        assert await broken.wait(0.01)
        assert not broken.ended

    async def test_the_reader_gets_what_was_there_before_the_error(self) -> None:
        outbox = Outbox(1.0)
        await outbox.put({"n": 0})
        outbox.close(ValueError("broken"))
        assert await anext(outbox) == ({"n": 0},)
        with pytest.raises(ValueError, match="broken"):
            await anext(outbox)

    async def test_a_full_outbox_waits_for_its_reader_and_gives_up_in_time(self) -> None:
        outbox = Outbox(10.0, items_max=2, clock=asyncio.get_running_loop().time)
        await outbox.put({"n": 0})
        await outbox.put({"n": 1})
        third = asyncio.create_task(outbox.put({"n": 2}))
        await asyncio.sleep(9.9)
        assert not third.done()
        assert len(await anext(outbox)) == 2
        await third
        await outbox.put({"n": 3})
        with pytest.raises(ReaderStalled):
            await outbox.put({"n": 4})
        assert len(outbox) == 2

    async def test_a_slow_engine_notices_a_stalled_reader_too(self) -> None:
        now = [0.0]
        outbox = Outbox(10.0, clock=lambda: now[0])
        await outbox.put({"n": 0})
        now[0] = 9.0
        await outbox.put({"n": 1})
        now[0] = 11.0
        with pytest.raises(ReaderStalled):
            await outbox.put({"n": 2})

    async def test_an_idle_engine_is_no_stalled_reader(self) -> None:
        now = [0.0]
        outbox = Outbox(10.0, clock=lambda: now[0])
        await outbox.put({"n": 0})
        await anext(outbox)
        now[0] = 60.0
        await outbox.put({"n": 1})
        now[0] = 69.0
        await outbox.put({"n": 2})
        assert await anext(outbox) == ({"n": 1}, {"n": 2})
