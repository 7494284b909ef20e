"""ContextPilot's own server (package ``contextpilot``), asked for the order of each prompt's documents.

Not its proxy: that of 0.5.0 leaves the documents of a system message where they are (it marks every
new session's as processed) and does not look into user messages. ``POST /reorder`` is its documented
way in; a client calls it as a request arrives, then sends the prompt in the order that comes back.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryFile

import aiohttp

from loadgen.bench.ports import free_ports
from loadgen.compare.native import running, until_healthy
from prism_ray.model import Order, Skeleton

TIMEOUT_S = 60.0


class ContextPilot:
    """A running server with an index of its own. ``reordered``: prompts that it changed so far."""

    def __init__(self, base_url: str, pid: int) -> None:
        self.base_url = base_url
        self.pid = pid
        self.reordered = 0
        self._numbers: dict[bytes, int] = {}

    async def forget(self) -> None:
        """Start from an empty index."""
        self.reordered = 0
        self._numbers.clear()
        url = f"{self.base_url}/reset"
        async with aiohttp.ClientSession() as client, client.post(url) as response:
            response.raise_for_status()

    async def order(self, client: aiohttp.ClientSession, skeleton: Skeleton) -> Order:
        """The order that ContextPilot gives a prompt; the client's own unless all slots may trade."""
        native = skeleton.native_order
        if skeleton.runs != (native,):
            return native
        numbers = [self._number(segment.id) for segment in skeleton.segments]
        body = {"contexts": [numbers]}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with client.post(f"{self.base_url}/reorder", json=body, timeout=timeout) as response:
            response.raise_for_status()
            (answer,) = (await response.json())["reordered_contexts"]
        order = order_of(numbers, answer)
        self.reordered += order != native
        return order

    def _number(self, segment_id: bytes) -> int:
        return self._numbers.setdefault(segment_id, len(self._numbers))


def order_of(documents: Sequence[int], answer: Sequence[int]) -> Order:
    """The slots in the order of ``answer``. ValueError if it has other documents than were asked."""
    if sorted(documents) != sorted(answer):
        raise ValueError(f"ContextPilot was asked for {documents} and answered {answer}")
    slots: dict[int, list[int]] = {}
    for slot, document in enumerate(documents):
        slots.setdefault(document, []).append(slot)
    return tuple(slots[document].pop(0) for document in answer)


@asynccontextmanager
async def contextpilot(python: str) -> AsyncIterator[ContextPilot]:
    """Its server, run by the interpreter ``python``. Raises ServerFailed if it does not come up."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [python, "-m", "contextpilot.server.http_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--log-level", "warning"]
    with TemporaryFile() as log:
        async with running(command, dict(os.environ), log) as process:
            # Its /health is 503 until there is an index.
            await until_healthy(url, process, log, "/openapi.json")
            yield ContextPilot(url, process.pid)
