"""A replica: one engine, fed in planned order. Serve calls it; it polls QAS for plans and reports to it."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from ray import serve

from prism_ray.config import PrismConfig
from prism_ray.dart import dump_hints
from prism_ray.dispatch import Refusal
from prism_ray.engine import make_engine
from prism_ray.engine.base import (
    Engine,
    EngineCall,
    EngineDied,
    EngineEvent,
    EngineInfo,
    EngineRefused,
    PrefillEnded,
    PrefillStarted,
    ResponseChunk,
)
from prism_ray.model import InFlight, Outcome, ReplicaCapacity
from prism_ray.serving.autoscaling import work_stats
from prism_ray.serving.choices import Merger, choice_body, choice_count
from prism_ray.serving.errors import error_body
from prism_ray.serving.held import Choice, Held
from prism_ray.serving.messages import (
    Accepted,
    Answer,
    Answered,
    Body,
    EngineSaysNo,
    EntryRefused,
    Hello,
    NotTaken,
    Payloads,
    PrefillDone,
    QasAddress,
    Timings,
)
from prism_ray.serving.outbox import Outbox, ReaderStalled
from prism_ray.serving.plan_gate import EntryKey, GateBroken, NotYourTurn, PlanGate
from prism_ray.serving.replica_channel import ReplicaChannel, ReplicaTotals
from prism_ray.serving.waiting import set_within

logger = logging.getLogger(__name__)

ACCEPTED_AFTER_S = 0.02
"""An answer that begins within this time says by itself that the engine has the request."""

FINISH_WAIT_S = 5.0
"""How long an aborted request's Finished event is waited for before its slot is given back anyway."""


class Replica:
    """The Serve deployment around one engine."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        self._config = config = PrismConfig.from_json(config_json)
        self.name: str = serve.get_replica_context().replica_id.unique_id
        self.incarnation = uuid.uuid4().hex
        self._engine = self._make_engine(config)
        self._channels: dict[str, ReplicaChannel] = {}
        self._engine.follow_cache(self._cache_told)
        self._info: EngineInfo = await self._engine.start()
        self.capacity = _capacity(config, self._info)
        self._held: dict[EntryKey, Held] = {}
        self._choices: dict[str, Choice] = {}
        self._owed_tokens = 0
        self._totals = ReplicaTotals()
        self._dead: str | None = None
        self._gate = PlanGate(
            body_wait_s=config.replicas.body_wait_s,
            plan_wait_s=config.limits.qas_timeout_s,
            prefill_ahead_tokens=self.capacity.prefill_ahead_tokens,
            owed_tokens=lambda: self._owed_tokens,
            on_void=self._on_void,
            on_broken=self._die,
            clock=time.monotonic,
        )
        self._gate.start()
        self._pump = asyncio.create_task(self._read_events(), name="prism-engine-events")

    def _make_engine(self, config: PrismConfig) -> Engine:
        """The engine that the config names; a hook for measurements of everything else."""
        return make_engine(config)

    # -- Serve ----------------------------------------------------------------------------------

    async def attach(self, address: QasAddress) -> None:
        """Take plans from this QAS, too. Several can live during an update."""
        if address.epoch in self._channels or self._dead is not None:
            return
        channel = ReplicaChannel(
            address,
            Hello(self.name, self.incarnation, self._info.model, self.capacity),
            gate=self._gate,
            in_flight=self._in_flight,
            totals=self._totals,
            engine=self._engine,
            on_closed=self._channels.pop,
        )
        await channel.open()
        self._channels[address.epoch] = channel

    async def name_of(self) -> str:
        """This replica's name in Serve."""
        return self.name

    async def generate(self, call: Body) -> AsyncIterator[Answer]:
        """Serve one body: wait for its turn, then stream the engine's answer."""
        if self._dead is not None:
            raise EngineDied(self._dead)
        key = (call.epoch, call.request_id, call.attempt)
        if key in self._held:
            yield NotTaken("doubled")
            return
        held = self._held[key] = Held(key, call.uncached_tokens, time.monotonic())
        try:
            stream = await self._submit_first(call, held)
            outbox = Outbox(self._config.limits.client_stall_s)
            held.producer = asyncio.create_task(self._produce(call, held, stream, outbox))
            if not await outbox.wait(ACCEPTED_AFTER_S):
                yield Accepted(self.name)
            answered = None
            async for ready in outbox:
                if outbox.ended and held.gone.is_set():
                    answered = await self._answered(held)
                yield Payloads(ready, answered)
            if answered is None:
                yield await self._answered(held)
        except NotYourTurn as refusal:
            yield NotTaken(refusal.reason)
        except GateBroken as error:
            raise EngineDied(str(error)) from None
        except EngineRefused as refusal:
            yield EngineSaysNo(refusal.status, refusal.body)
        except ReaderStalled:
            yield EngineSaysNo(408, error_body("the answer was not read", "timeout"))
        finally:
            # Runs on every way out, a client's cancellation included.
            await asyncio.shield(self._release(held))

    async def check_health(self) -> None:
        """Serve's health check: a dead engine means a new replica."""
        if self._dead is not None:
            raise EngineDied(self._dead)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve's autoscaling is told (``serving.autoscaling``); nothing while no QAS answers."""
        return work_stats(
            self._totals.work,
            [channel.queued_tokens for channel in self._channels.values()],
            owed_tokens=self._owed_tokens,
            taken_slots=len(self._held) / self.capacity.max_running,
            now_s=time.monotonic(),
        )

    async def flush_cache(self) -> bool:
        return await self._engine.flush_cache()

    async def books(self) -> dict[str, int]:
        """What is held right now; all zero when idle.

        ``pool_used_tokens`` is the pool without what is free and what only the cache holds.
        """
        load = await self._engine.load()
        return {
            "held": len(self._held),
            "choices": len(self._choices),
            "owed_tokens": self._owed_tokens,
            "in_line": len(self._gate.in_line()),
            "engine_running": load.running,
            "engine_waiting": load.waiting,
            "pool_used_tokens": load.pool_used_tokens,
        }

    async def __del__(self) -> None:
        await self._gate.stop()
        self._pump.cancel()
        await self._engine.stop()

    # -- one request ----------------------------------------------------------------------------

    async def _submit_first(self, call: Body, held: Held) -> AsyncIterator[ResponseChunk]:
        turn = await self._gate.enter(held.key, held.uncached_tokens)
        hints = None
        if turn.table is not None and self._info.takes_hints:
            hints = dump_hints(turn.table, call.epoch)
        try:
            held.expect(choice_count(call.body))
            self._owed_tokens += held.uncached_tokens
            self._totals.work.began(time.monotonic())
            held.in_engine = True
            return await self._submit(call, held, hints)
        except EngineRefused:
            self._close_books(held)
            raise
        finally:
            turn.submitted()

    async def _submit(
        self, call: Body, held: Held, hints: dict[str, Any] | None = None
    ) -> AsyncIterator[ResponseChunk]:
        """Submit the request's next choice."""
        choice = held.new_choice()
        self._choices[choice.engine_id] = choice
        try:
            return await self._engine.submit(
                EngineCall(
                    request_id=choice.engine_id,
                    endpoint=call.endpoint,
                    body=choice_body(call.body, choice.index),
                    prompt_ids=call.prompt_ids,
                    boundaries=call.boundaries,
                    segments=call.segments,
                    path_keys=call.path_keys,
                    system_tokens=call.system_tokens,
                    hints=hints,
                    cache_salt=call.cache_salt,
                )
            )
        except (EngineRefused, EngineDied):
            held.drop(choice)
            del self._choices[choice.engine_id]
            raise

    async def _produce(
        self, call: Body, held: Held, first: AsyncIterator[ResponseChunk], outbox: Outbox
    ) -> None:
        """Fill the outbox from all choices; it is closed on every way out."""
        merger = Merger(call.endpoint, call.body, call.request_id)
        try:
            if held.awaited == 1:
                await self._read(0, first, held, merger, outbox)
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._read(0, first, held, merger, outbox))
                    await self._follow(call, held, merger, outbox, group)
            last = merger.end()
            if last is not None:
                await outbox.put(last)
            outbox.close()
        except Exception as error:
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            outbox.close(error)
            # At once, not when the reader comes to see the error: it may have stopped reading.
            await self._abort(held)

    async def _follow(
        self, call: Body, held: Held, merger: Merger, outbox: Outbox, group: asyncio.TaskGroup
    ) -> None:
        """Submit the other choices once the first one's prompt is in the cache."""
        await held.pioneered.wait()
        first = held.choices[0].finished
        if first is not None and first.outcome is not Outcome.FINISHED:
            held.expect_no_more()  # the first one's own answer says what went wrong
            return
        for index in range(1, held.awaited):
            stream = await self._submit(call, held)
            group.create_task(self._read(index, stream, held, merger, outbox))

    async def _read(
        self,
        index: int,
        stream: AsyncIterator[ResponseChunk],
        held: Held,
        merger: Merger,
        outbox: Outbox,
    ) -> None:
        async for chunk in stream:
            if held.first_payload_s is None and chunk.tokens:
                held.first_payload_s = time.monotonic()
            payload = merger.take(index, chunk.payload)
            if payload is not None:
                await outbox.put(payload)

    async def _answered(self, held: Held) -> Answered:
        # The last token reaches the client's stream before the scheduler has let the request go.
        await self._wait_gone(held)
        start = held.received_s
        timings = Timings(
            _since(start, held.prefill_started_s),
            _since(start, held.prefill_ended_s),
            _since(start, held.first_payload_s),
        )
        end = held.completion()
        if end is None:
            return Answered(0, 0, 0, timings)
        return Answered(end.prompt_tokens, end.cached_tokens, end.output_tokens, timings)

    async def _wait_gone(self, held: Held) -> None:
        if not await set_within(held.gone, FINISH_WAIT_S):
            logger.error("no finish of %s within %.0f s", held.key[1], FINISH_WAIT_S)

    async def _abort(self, held: Held) -> None:
        held.expect_no_more()
        for choice in held.unfinished():
            await self._engine.abort(choice.engine_id)

    async def _release(self, held: Held) -> None:
        """Take the request out of the engine, and only then return what it occupied."""
        if held.producer is not None and not held.producer.done():
            held.producer.cancel()
            await asyncio.gather(held.producer, return_exceptions=True)
        await self._abort(held)
        if held.in_engine:
            await self._wait_gone(held)
            self._close_books(held)
        for choice in held.choices:
            self._choices.pop(choice.engine_id, None)
        self._held.pop(held.key, None)

    def _close_books(self, held: Held) -> None:
        """Return what the request owed and tell its QAS, once."""
        if not held.in_engine:
            return
        held.in_engine = False
        if held.prefill_ended_s is None:
            self._owed_tokens -= held.uncached_tokens
            self._totals.work.dropped(time.monotonic())
        channel = self._channels.get(held.key[0])
        if channel is None:
            return
        completion = held.completion()
        if completion is None:
            channel.refused(EntryRefused(held.key[1], held.key[2], "engine_refused"))
        else:
            channel.completed(completion)

    # -- the engine's events --------------------------------------------------------------------

    async def _read_events(self) -> None:
        try:
            async for event in self._engine.events():
                self._on_engine_event(event)
        except EngineDied as error:
            self._die(str(error) or "the engine's processes are gone")
        except (
            Exception
        ) as error:  # without its events a replica returns no credit: better a new one
            logger.exception("the engine's events cannot be followed")
            self._die(f"the engine's events cannot be followed: {error!r}")

    def _die(self, reason: str) -> None:
        """Take nothing more and fall silent; Serve's health check finds it and makes a new replica."""
        self._dead = reason
        logger.error("this replica is dead: %s", reason)
        for channel in list(self._channels.values()):
            channel.close()
        for held in self._held.values():
            held.gone.set()

    def _on_engine_event(self, event: EngineEvent) -> None:
        choice = self._choices.get(event.request_id)
        if choice is None:
            return
        held = choice.held
        if isinstance(event, PrefillStarted):
            if held.prefill_started(choice, event):
                self._totals.prefill_started(event.prompt_tokens, event.cached_tokens)
        elif isinstance(event, PrefillEnded):
            if held.in_engine and held.prefill_ended(choice, event):
                self._on_prefill_ended(held)
        else:
            self._totals.finished(event.output_tokens)
            # Slot and credit return with the engine's word, not with the client's reading speed.
            if held.choice_finished(choice, event):
                self._close_books(held)

    def _on_prefill_ended(self, held: Held) -> None:
        self._owed_tokens -= held.uncached_tokens
        prompt = held.prompt
        lengths = (prompt.prompt_tokens, prompt.cached_tokens) if prompt else (0, 0)
        self._totals.work.ended(lengths[0], lengths[0] - lengths[1], time.monotonic())
        channel = self._channels.get(held.key[0])
        if channel is not None:
            channel.prefilled(PrefillDone(held.key[1], held.key[2], *lengths))

    def _cache_told(self, message: bytes) -> None:
        for channel in self._channels.values():
            channel.cache_told(message)

    def _on_void(self, key: EntryKey, reason: Refusal) -> None:
        channel = self._channels.get(key[0])
        if channel is not None:
            channel.refused(EntryRefused(key[1], key[2], str(reason)))

    def _in_flight(self) -> list[InFlight]:
        here = [held.in_flight() for held in self._held.values() if not held.gone.is_set()]
        known = {(h.request_id, h.attempt) for h in here}
        return here + [e for e in self._gate.in_line() if (e.request_id, e.attempt) not in known]


def _capacity(config: PrismConfig, info: EngineInfo) -> ReplicaCapacity:
    """Credit ceiling: the config's, else 2 x chunk, else (chunking off) 2 x max prefill tokens."""
    ahead = config.replicas.prefill_ahead_tokens
    if ahead is None:
        ahead = 2 * (info.chunked_prefill_tokens or info.max_prefill_tokens)
    return ReplicaCapacity(
        pool_tokens=info.pool_tokens,
        max_running=min(config.replicas.max_running, info.max_running),
        prefill_ahead_tokens=ahead,
        page_size=info.page_size,
        context_length=info.context_length,
        tells_cache=info.tells_cache,
    )


def _since(start_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else max(0.0, at_s - start_s)
