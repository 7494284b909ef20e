"""Waiting for an event with a limit, without the task that ``asyncio.wait_for`` starts for it."""

from __future__ import annotations

import asyncio


async def set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether ``event`` is set within ``timeout_s`` (None: however long it takes)."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
