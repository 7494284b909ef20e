"""What the engine has answered and the reader has not taken yet: bounded, and taken together.

The first item never waits for a second, and no later one longer than ``SPACING_S`` after the batch
before it: batches cost, and a decode step takes longer than that. A reader that stops taking ends the
answer instead of filling memory. Knows no engine and no transport.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from prism_ray.serving.waiting import set_within

ITEMS_MAX = 1024

SPACING_S = 0.005
"""Batches of one answer are at least this far apart; what comes meanwhile goes together."""


class ReaderStalled(Exception):
    """Nothing was taken for ``stall_s`` although something was there."""


class Outbox:
    """An async iterator of batches. Several tasks may ``put``; one reads.

    At most ``items_max`` items lie here: then ``put`` waits for room. What the engine produces
    meanwhile is bounded by its output limit and by ``stall_s``, after which ``put`` raises.
    """

    def __init__(
        self,
        stall_s: float,
        items_max: int = ITEMS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stall_s = stall_s
        self._items_max = items_max
        self._clock = clock
        self._ready: list[dict[str, Any]] = []
        self._since_s = 0.0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._end = asyncio.Event()
        self._taken_s = -SPACING_S
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._ready)

    async def put(self, item: dict[str, Any]) -> None:
        """Add an item; raises ReaderStalled when the oldest has lain here too long."""
        now = self._clock()
        if not self._ready:
            self._since_s = now
        elif now - self._since_s > self._stall_s:
            raise ReaderStalled
        while len(self._ready) >= self._items_max:
            self._room.clear()
            if not await set_within(self._room, self._stall_s):
                raise ReaderStalled
        if not self._ready:
            self._since_s = self._clock()
        self._ready.append(item)
        self._news.set()

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more comes; the reader gets what is here, then the error or the end."""
        self._error = error
        self._end.set()
        self._news.set()

    @property
    def ended(self) -> bool:
        """Everything was taken and nothing more comes, not even an error."""
        return self._end.is_set() and self._error is None and not self._ready

    async def wait(self, patience_s: float) -> bool:
        """Whether there is something to take, or an end, within ``patience_s``."""
        if not self._ready and not self._end.is_set():
            self._news.clear()
            await set_within(self._news, patience_s)
        return bool(self._ready) or self._end.is_set()

    def __aiter__(self) -> Outbox:
        return self

    async def __anext__(self) -> tuple[dict[str, Any], ...]:
        """All that is ready, at least one item."""
        while not self._ready:
            if self._end.is_set():
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        left_s = self._taken_s + SPACING_S - self._clock()
        if left_s > 0:
            await set_within(self._end, left_s)
        self._taken_s = self._clock()
        batch = tuple(self._ready)
        self._ready.clear()
        self._room.set()
        return batch
