"""Clients that leave, and what the application still holds after them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import ray

from loadgen.bench.handles import replica_handle
from prism_ray.model import DemandTable, Plan, PlanEntry
from prism_ray.serving.held import Held
from prism_ray.serving.messages import Answer, Body
from prism_ray.serving.replica import Replica

BLOCKER = ("", "blocker", 0)


class WatchedReplica(Replica):
    """A replica that says how far each request has come, and can hold up the way into its engine."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        self.left: Counter[str] = Counter()
        self._way_s = 0.0
        self._on_the_way = 0
        await super().__init__(config_json)

    async def generate(self, call: Body) -> AsyncIterator[Answer]:
        self._on_the_way += 1
        try:
            await asyncio.sleep(self._way_s)
        finally:
            self._on_the_way -= 1
        async for message in super().generate(call):
            yield message

    async def _release(self, held: Held) -> None:
        self.left[_stage(held)] += 1
        await super()._release(held)

    async def stages_left(self) -> dict[str, int]:
        """Requests by the stage in which they left; others never came here."""
        return dict(self.left)

    async def stages(self) -> list[str]:
        """The stages of all requests that are here."""
        return ["way"] * self._on_the_way + [_stage(held) for held in self._held.values()]

    async def lengthen_way(self, seconds: float) -> None:
        self._way_s = seconds

    async def block_gate(self, blocked: bool) -> None:
        """Let a planned request without a body stand first in line, or take it away."""
        if blocked:
            entry = PlanEntry(BLOCKER[1], BLOCKER[2], 1)
            self._gate.add_plan(Plan(self.name, BLOCKER[0], 1, (entry,), DemandTable(0)))
        else:
            self._gate.void(BLOCKER)


def _stage(held: Held) -> str:
    if not held.choices:
        return "gate"
    if held.prompt is None:
        return "waiting"
    if held.prefill_ended_s is None:
        return "prefill"
    return "finished" if held.gone.is_set() else "decoding"


class Books:
    """Everything that counts requests, wherever it is."""

    def __init__(self) -> None:
        self.replica = replica_handle()
        names = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True)]
        (name,) = [n for n in names if n.endswith("qas") or "qas" in n.lower().split(":")]
        self._qas = ray.get_actor(name, namespace="serve")

    async def all(self) -> dict[str, int]:
        """All books by name; QAS recounts its own first."""
        # QAS first: what it thinks is gone must be gone from the engine a moment later.
        qas = await _value(self._qas.check.remote())
        replica = await _value(self.replica.books.remote())
        return {f"replica.{n}": v for n, v in replica.items()} | {
            f"qas.{n}": v for n, v in qas.items()
        }

    async def open(self) -> dict[str, int]:
        """Those that are not zero."""
        return {name: value for name, value in (await self.all()).items() if value}

    async def seconds_to_look(self) -> float:
        """How long it takes to ask for all books: the median of three."""
        times = []
        for _ in range(3):
            start = time.monotonic()
            await self.all()
            times.append(time.monotonic() - start)
        return sorted(times)[1]

    async def seconds_to_close(self, timeout_s: float, blocked: bool = False) -> float:
        """How long it takes from now until nothing is held (but the gate's blocker).

        AssertionError if that is too long, or if the credit returns before the engine let go.
        """
        expected = {"replica.in_line": 1} if blocked else {}
        start = time.monotonic()
        while (held := await self.open()) != expected:
            assert time.monotonic() < start + timeout_s, held
            if not held.get("qas.sent"):
                early = held.get("replica.engine_running", 0) + held.get(
                    "replica.engine_waiting", 0
                )
                assert not early, f"QAS gave away what the engine still holds: {held}"
            await asyncio.sleep(0.02)
        return time.monotonic() - start

    async def stages(self) -> list[str]:
        return list(await _value(self.replica.stages.remote()))


async def _value(reference: Any) -> Any:
    return await reference


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> None:
    """Wait for an awaitable condition."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def leave(request: asyncio.Task[httpx.Response]) -> None:
    """Close the connection of a request under way."""
    assert not request.done(), request.result().text
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
