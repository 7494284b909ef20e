"""Runs arms on real engines that stay up while memory lasts, each from an empty cache.

A native arm is a client of SGLang's own server; ours is the product's dispatcher in this process, in
front of an engine, without Serve. Both are timed where a client would be: from the scheduled arrival
to the first part of the answer in this process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp

from loadgen.checkout import git_commit
from loadgen.compare.arms import Arm
from loadgen.compare.contextpilot import ContextPilot, contextpilot
from loadgen.compare.generate import Ask, Prompt, serve
from loadgen.compare.load import MachineLoad
from loadgen.compare.machine import Machine
from loadgen.compare.native import NativeServer, native_server
from loadgen.compare.provenance import made_on
from loadgen.compare.router import router
from loadgen.compare.runs import Served, Step, columns, figures
from loadgen.compare.words import WordTokens
from loadgen.compare.workload import Workload, hashes
from loadgen.real.cluster import RealArrival, StartedEngine, real_arrivals
from loadgen.real.engines import ENGINE_GIB, SPARE_GIB, free_gib, running_engine, token_ids_for
from loadgen.real.rows import RealRow
from loadgen.real.session import run_placed
from loadgen.real.token_ids import AtomTokens
from loadgen.traces import Trace
from prism_ray.engine.base import EngineInfo

WARM_UP_SEED = 9_999
WARM_UP_REQUESTS = 12


class EngineKey(NamedTuple):
    """What an engine must be started with anew. ``policy`` is the native server's, else empty."""

    policy: str
    retention: str
    refresh: bool

    @classmethod
    def of(cls, arm: Arm) -> EngineKey:
        if arm.native:
            return cls(arm.policy, "lru", arm.refresh)
        return cls("", arm.retention, arm.refresh)


class _Up(NamedTuple):
    engine: NativeServer | StartedEngine
    stack: AsyncExitStack


class Outcome(NamedTuple):
    """A finished run: what clients saw, and on an engine of which limits."""

    served: tuple[Served, ...]
    limits: Mapping[str, Any]
    load: Mapping[str, Any]
    extra: Mapping[str, Any]


class Lab:
    """Engines of one machine for one workload; a context manager that ends them all.

    ``room``: how many engines may be up at once; by default as many as memory holds. ``replicas``: how
    many an arm has.
    """

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        room: int | None = None,
        replicas: int = 1,
        contextpilot_python: str = sys.executable,
    ) -> None:
        if room is not None and room < replicas:
            raise ValueError(
                f"an arm needs {replicas} engines at once, and there is room for {room}"
            )
        self.machine = machine
        self.workload = workload
        self.replicas = replicas
        self._room = room
        self._runner = asyncio.Runner()
        self._up: dict[tuple[EngineKey, int], _Up] = {}
        self._numbers = count()
        self._contextpilot_python = contextpilot_python
        self._pilot: ContextPilot | None = None
        self._pilot_stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._runner.run(self._close_all())
        finally:
            self._runner.__exit__(kind, error, trace)

    def run(self, step: Step) -> dict[str, Any]:
        """Serve a step's requests and say what came of it, ready to be kept.

        Raises RuntimeError if a request was not answered, ServerFailed or EngineDied.
        """
        trace = self.workload.made(step.seed)
        times_s = self.workload.times_s(trace, step.qps, step.seed)
        outcome = self.serve(step.arm, trace, times_s)
        return {
            "measured": True,
            "hashes": hashes(trace, times_s, outcome.limits),
            "limits": dict(outcome.limits),
            **figures(outcome.served),
            **outcome.extra,
            "machine_load": dict(outcome.load),
            "made_on": made_on(self.machine.arguments(self.workload)),
            "ended_unix_s": round(time.time()),
            "git_commit": git_commit(),
            "rows": columns(outcome.served),
        }

    def serve(self, arm: Arm, trace: Trace, times_s: Sequence[float]) -> Outcome:
        """The trace's requests at their times through an arm, from an empty cache."""
        return self._runner.run(self._serve(arm, real_arrivals(trace, times_s)))

    async def _serve(self, arm: Arm, arrivals: Sequence[RealArrival]) -> Outcome:
        engines = await self._engines(arm)
        tokens = self._tokens(arrivals)
        load = MachineLoad(map(_pid, engines))
        extra: dict[str, Any] = {}
        servers = [engine for engine in engines if isinstance(engine, NativeServer)]
        if servers:
            for server in servers:
                await server.flush()
            pilot = await self._contextpilot() if arm.reorders else None
            served = await _through_servers(servers, arm.placement, arrivals, tokens, pilot)
            limits = servers[0].limits
            if pilot is not None:
                extra["reordered_requests"] = pilot.reordered
        else:
            name = f"{arm.name}/{next(self._numbers)}"
            ours = [engine for engine in engines if isinstance(engine, StartedEngine)]
            served, extra = await _through_dispatcher(ours, arm, arrivals, tokens, name)
            limits = _limits(ours[0].info)
        shared = {
            "model": Path(self.machine.model).name,
            "cpu": self.machine.cpu,
            "replicas": self.replicas,
        }
        return Outcome(served, {**shared, **limits}, load.read(), extra)

    def _tokens(self, arrivals: Sequence[RealArrival]) -> AtomTokens:
        """Token ids of all prompts as clients wrote them, the same for every arm."""
        model = Path(self.machine.model)
        several = self.replicas > 1  # routers read texts
        tokens = WordTokens(model / "tokenizer.json") if several else token_ids_for(model)
        for arrival in arrivals:
            tokens.learn(arrival.prompt(arrival.ticket.skeleton.native_order))
        return tokens

    # Engines

    async def _engines(self, arm: Arm) -> list[NativeServer | StartedEngine]:
        """All engines of an arm, up and warm."""
        keys = [(EngineKey.of(arm), number) for number in range(self.replicas)]
        found = {key: self._up.pop(key) for key in keys if key in self._up}
        try:
            for key in keys:
                if key not in found:
                    await self._make_room(len(found))
                    found[key] = await self._start(arm)
        finally:
            self._up |= found  # used last
        return [found[key].engine for key in keys]

    async def _start(self, arm: Arm) -> _Up:
        stack = AsyncExitStack()
        up = _Up(await stack.enter_async_context(self._starting(arm)), stack)
        await self._warm_up(up.engine)
        return up

    async def _contextpilot(self) -> ContextPilot:
        """ContextPilot's server with an empty index."""
        if self._pilot is None:
            starting = contextpilot(self._contextpilot_python)
            self._pilot = await self._pilot_stack.enter_async_context(starting)
        await self._pilot.forget()
        return self._pilot

    def _starting(self, arm: Arm) -> Any:
        arguments = self.machine.arguments(self.workload)
        if arm.native:
            return native_server(
                self.machine.model,
                arguments,
                cpu=self.machine.cpu,
                policy=arm.policy,
                refresh=arm.refresh,
            )
        return running_engine(
            self.machine.model, arguments, {}, cpu=self.machine.cpu, retention=arm.retention
        )

    async def _make_room(self, taken: int) -> None:
        """Arms go round, so the one that was used last is wanted last. ``taken``: are needed now."""
        while self._up and not self._has_room(taken):
            _, up = self._up.popitem()
            await up.stack.aclose()

    def _has_room(self, taken: int) -> bool:
        if self._room is not None:
            return len(self._up) + taken < self._room
        # On a GPU an engine takes what memory there is.
        return self.machine.cpu and free_gib() > ENGINE_GIB + SPARE_GIB

    async def _warm_up(self, engine: NativeServer | StartedEngine) -> None:
        trace = self.workload.made(WARM_UP_SEED)
        arrivals = real_arrivals(trace, [0.0] * len(trace.requests))[:WARM_UP_REQUESTS]
        tokens = self._tokens(arrivals)
        if isinstance(engine, NativeServer):
            await _through_http(engine.base_url, arrivals, tokens)
        else:
            arm = Arm("warm-up", "fcfs")
            await _through_dispatcher([engine], arm, arrivals, tokens, "warm-up")

    async def _close_all(self) -> None:
        await self._pilot_stack.aclose()
        while self._up:
            _, up = self._up.popitem()
            await up.stack.aclose()


async def _through_servers(
    servers: Sequence[NativeServer],
    program: str,
    arrivals: Sequence[RealArrival],
    tokens: AtomTokens,
    pilot: ContextPilot | None,
) -> tuple[Served, ...]:
    """Straight to a single server; to several through a router that knows nothing yet."""
    if len(servers) == 1:
        return await _through_http(servers[0].base_url, arrivals, tokens, pilot)
    async with router(program, [server.base_url for server in servers]) as url:
        return await _through_http(url, arrivals, tokens, pilot)


async def _through_http(
    base_url: str,
    arrivals: Sequence[RealArrival],
    tokens: AtomTokens,
    pilot: ContextPilot | None = None,
) -> tuple[Served, ...]:
    def asking(arrival: RealArrival) -> Ask | None:
        async def ask(client: aiohttp.ClientSession) -> Sequence[int]:
            assert pilot is not None
            order = await pilot.order(client, arrival.ticket.skeleton)
            return tokens.prompt(arrival.prompt(order))

        return None if pilot is None else ask

    def prompt(arrival: RealArrival) -> Prompt:
        ticket = arrival.ticket
        ids = tokens.prompt(arrival.prompt(ticket.skeleton.native_order))
        text = tokens.text(ids) if isinstance(tokens, WordTokens) else ""
        return Prompt(
            ticket.request_id, ticket.arrival_s, ids, arrival.output_tokens, asking(arrival), text
        )

    return tuple(
        Served(
            row.arrival_s,
            row.prompt_tokens,
            row.cached_tokens,
            row.first_chunk_s,
            row.finished_s,
            row.sent_s - row.arrival_s,
            row.error,
        )
        for row in await serve(base_url, list(map(prompt, arrivals)))
    )


async def _through_dispatcher(
    engines: Sequence[StartedEngine],
    arm: Arm,
    arrivals: Sequence[RealArrival],
    tokens: AtomTokens,
    name: str,
) -> tuple[tuple[Served, ...], dict[str, Any]]:
    done = await run_placed(
        {f"replica-{number}": engine for number, engine in enumerate(engines)},
        arrivals,
        tokens,
        policy=arm.policy,
        options=arm.options,
        epoch=name,
        run_name=name,
        stream=True,
        placement=arm.placement or "single",
    )
    orders = zip(done.rows, arrivals, strict=True)
    reordered = sum(row.order != a.ticket.skeleton.native_order for row, a in orders)
    extra = {
        "reordered_requests": reordered,
        "evicted_tokens": done.evicted_tokens,
        "tells_cache": engines[0].info.tells_cache,
    }
    return tuple(map(_seen, done.rows)), extra


def _seen(row: RealRow) -> Served:
    return Served(
        row.arrival_s,
        row.prompt_tokens,
        row.cached_tokens,
        row.first_chunk_s,
        row.finished_s,
        row.lateness_s,
        row.error,
    )


def _limits(info: EngineInfo) -> dict[str, Any]:
    return {
        "pool_tokens": info.pool_tokens,
        "chunked_prefill_tokens": info.chunked_prefill_tokens,
        "max_running": info.max_running,
        "page_size": info.page_size,
    }


def _pid(engine: NativeServer | StartedEngine) -> int:
    if isinstance(engine, NativeServer):
        return engine.pid
    pid = getattr(engine.engine, "pid", None)
    return 0 if pid is None else int(pid)
