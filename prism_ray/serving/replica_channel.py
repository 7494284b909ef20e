"""A replica's two channels to one QAS: plans come in by long poll, numbered reports go out in order.

The channel ends when its QAS is dead; a new QAS attaches with a channel of its own. It outlives
everything else: calls that fail are made again, and a QAS that does not know the replica (any more)
is told hello again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from prism_ray.dispatch import Refusal
from prism_ray.engine.base import Engine
from prism_ray.model import Completion, InFlight, ReplicaSnapshot
from prism_ray.scaling import WorkMeter
from prism_ray.serving.line import AnyLine, open_line
from prism_ray.serving.loops import keep_running
from prism_ray.serving.messages import (
    EntryRefused,
    Heard,
    Hello,
    PlanDelivery,
    PrefillDone,
    QasAddress,
    Report,
    Told,
)
from prism_ray.serving.plan_gate import PlanGate
from prism_ray.serving.qas_link import actor_handle
from prism_ray.serving.waiting import set_within

logger = logging.getLogger(__name__)

SNAPSHOT_S = 0.5
"""Absolute numbers go out this often; they correct credit that events let drift."""

RETRY_S = 0.25

SNAPSHOT_AGAIN_S = 0.5
"""A snapshot of the cache that was asked for and did not come is asked for again after this long."""

QUEUED_KNOWN_S = 5.0
"""How long QAS's last word on what waits for the replica counts; it comes with every snapshot."""

CACHE_NEWS_MAX = 10_000
"""Messages on the cache that wait for a QAS which does not answer; beyond it all are forgotten."""


class ReplicaTotals:
    """Counters since the engine started, and how fast it prefills (``work``)."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.work = WorkMeter()

    def prefill_started(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def finished(self, output_tokens: int) -> None:
        self.output_tokens += output_tokens


class _Unknown(Exception):
    """This QAS does not know the replica in its present life: it must say hello."""


class _Dead(Exception):
    """This QAS is dead."""


class ReplicaChannel:
    """See the module. ``in_flight`` must list everything that the replica holds or has in line."""

    def __init__(
        self,
        address: QasAddress,
        hello: Hello,
        *,
        gate: PlanGate,
        in_flight: Callable[[], list[InFlight]],
        totals: ReplicaTotals,
        engine: Engine,
        on_closed: Callable[[str, Any], Any],
        find_actor: Callable[[str], Any] = actor_handle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._engine_hello = self._hello = hello
        self._gate = gate
        self._in_flight = in_flight
        self._totals = totals
        self._engine = engine
        self._on_closed = on_closed
        self._find_actor = find_actor
        self._clock = clock
        self._qas: Any = None
        self._line: AnyLine | None = None
        self._connecting = asyncio.Lock()
        self._hellos = 0
        self._read_version = 0
        self._sequence = 0
        self._snapshot_at_s = 0.0
        self._engine_counts: tuple[tuple[str, float], ...] = ()
        self._prefilled: list[PrefillDone] = []
        self._completed: list[Completion] = []
        self._refused: list[EntryRefused] = []
        self._cache: list[bytes] = []
        self._asking: asyncio.Task[None] | None = None
        self._queued: tuple[int, float] | None = None
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to say hello, poll and report. Raises ValueError if the QAS is not there."""
        self._qas = self._find_actor(self._address.actor_name)
        self._task = keep_running(self._live, "prism-channel")

    def close(self) -> None:
        """The engine is dead: fall silent, so that QAS sends nothing more."""
        if self._task is not None:
            self._task.cancel()
        self._closed()

    @property
    def queued_tokens(self) -> int | None:
        """Prompt tokens that wait at this QAS for the replica; None if it did not say lately."""
        if self._queued is None or self._clock() - self._queued[1] > QUEUED_KNOWN_S:
            return None
        return self._queued[0]

    def prefilled(self, event: PrefillDone) -> None:
        self._prefilled.append(event)
        self._news.set()

    def completed(self, completion: Completion) -> None:
        self._completed.append(completion)
        self._news.set()

    def refused(self, entry: EntryRefused) -> None:
        if entry.reason == Refusal.OVER_CREDIT:
            # With what others hold here: QAS would decide the same again at once.
            self._snapshot_at_s = 0.0
        self._refused.append(entry)
        self._news.set()

    def cache_told(self, message: bytes) -> None:
        """The engine said something of its cache. What is forgotten shows as a gap in its numbers."""
        if len(self._cache) >= CACHE_NEWS_MAX:
            self._cache.clear()
        self._cache.append(message)
        self._news.set()

    # -- one life after the other ---------------------------------------------------------------

    async def _live(self) -> None:
        """Until QAS is dead."""
        while True:
            try:
                await self._say_hello()
                await _first_to_fail(self._poll(), self._send_reports())
            except _Unknown:
                logger.warning("QAS %s does not know this replica: hello again", self._epoch)
                await asyncio.sleep(RETRY_S)
            except _Dead:
                logger.warning("channel to QAS %s closed: it died", self._epoch)
                self._closed()
                return

    def _closed(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        if self._line is not None:
            self._line.close()
        self._on_closed(self._address.epoch, None)

    async def _say_hello(self) -> None:
        """Begin a new life of this line: what was in flight counts as foreign in it."""
        self._hellos += 1
        incarnation = f"{self._engine_hello.incarnation}.{self._hellos}"
        self._hello = replace(self._engine_hello, incarnation=incarnation)
        self._read_version = self._sequence = 0
        self._snapshot_at_s = 0.0
        await self._call("hello", self._hello)

    async def _poll(self) -> None:
        while True:
            delivery: PlanDelivery | None = await self._call(
                "plans", self._hello.replica, self._hello.incarnation, self._read_version
            )
            if delivery is None:
                raise _Unknown
            for plan in delivery.plans:
                if plan.version > self._read_version:
                    self._read_version = plan.version
                    self._gate.add_plan(plan)
            for request_id, attempt in delivery.voided:
                self._gate.void((delivery.epoch, request_id, attempt))

    async def _send_reports(self) -> None:
        while True:
            left = self._snapshot_at_s - self._clock()
            await set_within(self._news, max(left, 0.0))
            self._news.clear()
            report = await self._next_report(self._clock() >= self._snapshot_at_s)
            told: Told = await self._call("report", report)
            if told.heard == Heard.UNKNOWN:
                raise _Unknown
            if told.queued_tokens is not None:
                self._queued = told.queued_tokens, self._clock()
            if told.heard == Heard.SNAPSHOT_WANTED and (
                self._asking is None or self._asking.done()
            ):
                self._asking = asyncio.create_task(self._ask_for_snapshot())

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call the actor until it answers; it takes the same call twice without harm."""
        while True:
            try:
                line = await self._have_line()
                return await line.call(method, *arguments)
            except ActorUnavailableError as error:
                logger.warning("QAS cannot be reached: %s", error)
            except RayActorError:
                raise _Dead from None
            except RayError as error:
                logger.warning("QAS call failed: %s", error)
            await asyncio.sleep(RETRY_S)

    async def _have_line(self) -> AnyLine:
        """A line that broke is had anew; where its actor is dead, Ray says so."""
        async with self._connecting:
            if self._line is None or self._line.lost:
                self._line = await open_line(self._address.line, self._qas)
            return self._line

    @property
    def _epoch(self) -> str:
        return self._address.epoch[:8]

    async def _ask_for_snapshot(self) -> None:
        """An engine that is busy answers late; nobody asks it twice meanwhile."""
        try:
            await self._engine.snapshot_cache()
        except Exception as error:  # reports go on all the same
            logger.warning("no snapshot of the cache: %r", error)
        await asyncio.sleep(SNAPSHOT_AGAIN_S)

    # -- reports --------------------------------------------------------------------------------

    async def _next_report(self, with_snapshot: bool) -> Report:
        snapshot = await self._snapshot() if with_snapshot else None
        if with_snapshot:
            self._snapshot_at_s = self._clock() + SNAPSHOT_S
        self._sequence += 1
        report = Report(
            self._hello.replica,
            self._hello.incarnation,
            self._sequence,
            self._read_version,
            tuple(self._prefilled),
            tuple(self._completed),
            tuple(self._refused),
            snapshot,
            tuple(self._cache),
            self._engine_counts if snapshot else (),
        )
        self._cache.clear()
        self._prefilled.clear()
        self._completed.clear()
        self._refused.clear()
        return report

    async def _snapshot(self) -> ReplicaSnapshot | None:
        try:
            load = await self._engine.load()
        except Exception as error:  # events go out all the same
            logger.warning("no snapshot: the engine does not say its load: %r", error)
            return None
        self._engine_counts = tuple(load.extra.items())
        # No await from here on: the list and the report's plan version belong to one moment.
        return ReplicaSnapshot(
            replica=self._hello.replica,
            incarnation=self._hello.incarnation,
            sequence=self._sequence + 1,
            running=load.running,
            waiting=load.waiting,
            pool_used_tokens=load.pool_used_tokens,
            prompt_tokens_total=self._totals.prompt_tokens,
            cached_tokens_total=self._totals.cached_tokens,
            output_tokens_total=self._totals.output_tokens,
            evicted_tokens_total=load.evicted_tokens_total,
            prefill_tokens_per_s=self._totals.work.tokens_per_s,
            in_flight=tuple(self._in_flight()),
        )


async def _first_to_fail(*loops: Awaitable[None]) -> None:
    """Run all until one raises; end the others and raise what it raised."""
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
