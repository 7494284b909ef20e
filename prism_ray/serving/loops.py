"""Background loops that must not end in silence: one that fails is logged and started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

RESTART_S = 1.0


def keep_running(
    loop: Callable[[], Awaitable[None]], name: str, restart_s: float = RESTART_S
) -> asyncio.Task[None]:
    """Run ``loop`` until it returns or is cancelled; start it again a little after an exception."""

    async def run() -> None:
        while True:
            try:
                await loop()
                return
            except Exception:
                logger.exception("%s failed; it starts again", name)
                await asyncio.sleep(restart_s)

    return asyncio.create_task(run(), name=name)
