"""Requests at a steady rate for as long as something happens to a server; every one has one outcome.

Most clients wait for their answer as long as it takes. Some leave after a while, as clients do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from loadgen.client import OpenLoop, open_client
from loadgen.rows import Outcome, PlannedRequest, RequestRow

PATIENCE_S = 150.0
"""A request without an end after this long was forgotten by the server: nothing here takes as long."""

LEAVE_AFTER_S = (0.02, 0.3, 1.2)
SLICE_S = 0.5

STREAMS_END = frozenset({"stream error internal_error, after tokens"})
"""A replica is lost: answers that have begun end with an error event, and nothing else happens."""

CONNECTIONS_END = frozenset({"connection", "truncated"})
"""Whoever held the client's connection is lost."""

INGRESS_ENDS = CONNECTIONS_END | {"refused 500 None"}
"""Serve's proxy answers for an ingress that ended before the first byte, in words of its own."""

_TOPICS = [" ".join(f"topic{t}word{n}" for n in range(40)) for t in range(10)]


@dataclass
class Load:
    """``async with Load(url)``: requests come from entering to leaving, which waits for all of them.

    ``rate_per_s``: Poisson arrivals. ``tokens``: shortest and longest answer. ``leaving``: share of
    clients that leave. ``rows`` and ``left`` (of those that meant to leave) fill up as requests end;
    their times count from ``start_s`` on the monotonic clock.
    """

    base_url: str
    seed: int = 0
    rate_per_s: float = 5.0
    tokens: tuple[int, int] = (10, 60)
    leaving: float = 0.0
    rows: list[RequestRow] = field(default_factory=list)
    left: list[RequestRow] = field(default_factory=list)
    sent: int = 0
    start_s: float = 0.0

    async def __aenter__(self) -> Self:
        self.start_s = time.monotonic()
        self._rng = random.Random(self.seed)
        self._client: aiohttp.ClientSession = open_client(self.base_url)
        self._patient = OpenLoop(self._client, timeout_s=PATIENCE_S, on_row=self.rows.append)
        self._leavers = [
            OpenLoop(self._client, timeout_s=s, on_row=self.left.append) for s in LEAVE_AFTER_S
        ]
        self._slices: set[asyncio.Task[list[RequestRow]]] = set()
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sending
        await asyncio.gather(*self._slices)
        await self._client.close()

    @property
    def now_s(self) -> float:
        """Seconds since the load began, as the rows count them."""
        return time.monotonic() - self.start_s

    async def burst(self, count: int) -> None:
        """So many more at once."""
        self._run(self._patient, [self._planned(self.now_s) for _ in range(count)])

    async def _send(self) -> None:
        at_s = until_s = 0.0
        while True:
            until_s += SLICE_S
            due: list[list[PlannedRequest]] = [[] for _ in range(1 + len(self._leavers))]
            while at_s < until_s:
                leaves = self._rng.random() < self.leaving
                kind = 1 + self._rng.randrange(len(self._leavers)) if leaves else 0
                due[kind].append(self._planned(at_s))
                at_s += self._rng.expovariate(self.rate_per_s)
            for loop, requests in zip((self._patient, *self._leavers), due, strict=True):
                self._run(loop, requests)
            await asyncio.sleep(until_s - self.now_s)

    def _run(self, loop: OpenLoop, requests: list[PlannedRequest]) -> None:
        self.sent += len(requests)
        task = asyncio.create_task(loop.run(requests, start_s=self.start_s))
        self._slices.add(task)

    def _planned(self, at_s: float) -> PlannedRequest:
        passages = self._rng.sample(_TOPICS, self._rng.randint(0, 3))
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": p, "prism": {"segment": p[:8], "reorderable": True}}
            for p in passages
        ]
        parts.append({"type": "text", "text": f"Question {self._rng.random()}?"})
        body = {
            "messages": [{"role": "user", "content": parts}],
            "stream": True,
            "max_tokens": self._rng.randint(*self.tokens),
            "ignore_eos": True,
            "prism": {"report": True},
        }
        return PlannedRequest(at_s, body)


def seen(rows: Iterable[RequestRow]) -> Counter[str]:
    """What clients saw, in words: how many requests had which end."""
    return Counter(_end(row) for row in rows)


def _end(row: RequestRow) -> str:
    if row.outcome is Outcome.REFUSED:
        return f"refused {row.status} {row.error_code}"
    if row.outcome is Outcome.STREAM_ERROR:
        # Without a token nothing of the answer was there: then the code has to say why.
        return f"stream error {row.error_code}, {'after' if row.chunk_s else 'without'} tokens"
    return str(row.outcome)


def redone(rows: Iterable[RequestRow]) -> int:
    """How many answers took more than one decision."""
    return sum(attempts(row) > 1 for row in rows if row.answered)


def attempts(row: RequestRow) -> int:
    """How often an answered request was decided; 0 where the answer does not say."""
    return int(row.prism["attempts"]) if row.prism else 0
