"""One small engine for the tests of what is known of its cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from ..engine_driver import Driver, tiny_engine
from .following import Following

POOL_TOKENS = 1500


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def following(random_tiny: Path) -> AsyncIterator[Following]:
    """An engine whose pool holds a few prompts, and everything it says of its cache."""
    engine = tiny_engine(
        random_tiny, max_total_tokens=POOL_TOKENS, context_length=1024, chunked_prefill_size=256
    )
    told = Following(engine)
    info = await engine.start()
    told.driver = Driver(engine, info)
    yield told
    await engine.stop()
