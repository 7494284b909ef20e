"""The simulated engine: the step model in real time behind the engine protocol; no model, no GPU.

It schedules, caches and evicts like the real engine and answers filler text at a modelled pace, so
everything around an engine can be run and tested without one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from prism_ray import cache_news
from prism_ray.dart import RETENTION, parse_hints, uses_anchors
from prism_ray.dart.params import RetentionParams
from prism_ray.engine.base import (
    CacheTold,
    EngineCall,
    EngineDied,
    EngineEvent,
    EngineInfo,
    EngineLoad,
    Finished,
    PrefillEnded,
    PrefillStarted,
    ResponseChunk,
)
from prism_ray.engine.batch import Ended, StepEnd
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.engine.call_anchors import call_anchors
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.engine.profile import load_profile
from prism_ray.engine.sequence import SimRequest
from prism_ray.engine.simulated_answers import Answer, Asked, read_body
from prism_ray.engine.simulated_path import call_path, digest_of, ids_bytes
from prism_ray.engine.step_model import StepModel
from prism_ray.model import Atom, Outcome

if TYPE_CHECKING:
    from prism_ray.config import PrismConfig


_CATCH_UP_S = 0.1
"""How far behind its own schedule the engine makes up for; more was a stall of the process."""


@dataclass(frozen=True, slots=True)
class SimulatedParams(StepParams):
    """The step model's limits, and what is added by running in real time.

    ``cost`` names a profile, of which the step costs are taken; ``speed`` divides its durations (2.0:
    twice as fast). A chat without a limit ends by itself after ``chat_output_tokens``.
    ``identity_block_tokens``: see ``call_path``.
    """

    cost: str = "a800-qwen3-4b"
    model: str = "simulated"
    speed: float = 1.0
    chat_output_tokens: int = 64
    identity_block_tokens: int = 32

    def __post_init__(self) -> None:
        StepParams.__post_init__(self)
        load_profile(self.cost)
        if self.retention not in RETENTION:
            raise ValueError(f"unknown retention {self.retention!r}; known: {', '.join(RETENTION)}")
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"speed: expected a number above 0, got {self.speed}")
        for name in ("chat_output_tokens", "identity_block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SimulatedParams:
        """Parameters from a config. Raises ValueError for unknown keys, wrong types and values."""
        defaults = {field.name: field.default for field in fields(cls)}
        for name, value in values.items():
            if name not in defaults:
                own = sorted(defaults.keys() - _SET_ELSEWHERE.keys())
                raise ValueError(f"unknown key {name!r}; known: {', '.join(own)}")
            _check_type(name, value, type(defaults[name]))
        return cls(**values)


_IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _check_type(name: str, value: object, expected: type) -> None:
    if name == "chunked_prefill_tokens" and value is None:
        return
    takes = (int, float) if expected is float else (expected,)
    if type(value) not in takes:
        raise ValueError(f"{name}: expected {_IN_WORDS[expected]}, got {value!r}")


@dataclass(slots=True)
class _Open:
    """An answer that is being written; ``None`` in ``chunks`` is its end."""

    asked: Asked
    answer: Answer
    chunks: asyncio.Queue[ResponseChunk | EngineDied | None]

    def put(self, chunks: list[ResponseChunk]) -> None:
        for chunk in chunks:
            self.chunks.put_nowait(chunk)


class SimulatedEngine:
    """The engine protocol over a StepModel. One event loop owns it; steps run in a task of it.

    A step of no duration still yields to other tasks once, so zero cost models measure the path
    around the engine. Answers are queued without a bound: an output limit bounds them.
    """

    def __init__(
        self, params: SimulatedParams | None = None, cost: CostModel | None = None
    ) -> None:
        """``cost`` replaces the costs named by ``params``."""
        self.params = params or SimulatedParams()
        self._ledger: CacheLedger | None = None
        if uses_anchors(self.params.retention):
            self._ledger = CacheLedger(lambda: self._model.cache.walk())
        self._cache_told: CacheTold | None = None
        self._model = StepModel(
            self.params, cost or load_profile(self.params.cost).cost, observer=self._ledger
        )
        self._open: dict[str, _Open] = {}
        self._events: asyncio.Queue[EngineEvent | EngineDied | None] = asyncio.Queue()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._gone: EngineDied | None = None
        self._idle_s = 0.0

    async def start(self) -> EngineInfo:
        """See Engine. Takes no time."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="simulated-engine")
        params = self.params
        return EngineInfo(
            model=params.model,
            pool_tokens=self._model.pool.size_tokens,
            context_length=params.context_length,
            max_running=params.max_running,
            chunked_prefill_tokens=params.chunked_prefill_tokens,
            max_prefill_tokens=params.max_prefill_tokens,
            page_size=params.page_size,
            takes_hints=True,
            tells_cache=self._ledger is not None,
        )

    async def submit(self, call: EngineCall) -> AsyncIterator[ResponseChunk]:
        """See Engine. Raises ValueError for a call that no correct caller makes."""
        self._check_alive()
        request, asked, answer = self._read(call)
        self._model.submit(request)
        opened = _Open(asked, answer, asyncio.Queue())
        self._open[call.request_id] = opened
        self._work.set()
        return _chunks(opened.chunks)

    def _read(self, call: EngineCall) -> tuple[SimRequest, Asked, Answer]:
        room = min(self.params.context_length, self._model.pool.size_tokens) - len(call.prompt_ids)
        asked = read_body(call, chat_output_tokens=self.params.chat_output_tokens, room_tokens=room)
        ids = ids_bytes(call.prompt_ids)
        prompt_digest = digest_of(ids)
        hints = parse_hints(call.hints) if call.hints is not None else None
        request = SimRequest(
            call.request_id,
            call_path(call, ids, self.params.identity_block_tokens),
            (Atom(digest_of(b"output of " + prompt_digest, call.cache_salt), asked.output_tokens),),
            call_anchors(call),
            max_new_tokens=asked.max_new_tokens,
            table=hints[0] if hints else None,
            epoch=hints[1] if hints else "",
        )
        created = int(time.time())
        model = str(call.body.get("model") or self.params.model)
        answer = Answer(call, asked, model=model, created=created, seed=prompt_digest)
        return request, asked, answer

    async def abort(self, request_id: str) -> None:
        """See Engine. A request inside a running batch ends with that batch."""
        ended = self._model.abort(request_id)
        if ended is not None:
            self._close(ended, time.monotonic())

    async def events(self) -> AsyncIterator[EngineEvent]:
        """See Engine."""
        while (event := await self._events.get()) is not None:
            if isinstance(event, EngineDied):
                raise event
            yield event

    async def load(self) -> EngineLoad:
        """See Engine. ``extra`` adds the cached tokens, the number of retractions, the seconds
        spent without work and, as the real engine does, what a cache with retention counts."""
        model = self._model
        keeps = {} if self._ledger is None else model.cache.retention_stats()._asdict()
        return EngineLoad(
            running=model.running,
            waiting=model.waiting,
            pool_used_tokens=model.pool.used_tokens,
            evicted_tokens_total=model.cache.evicted_tokens,
            extra={
                "cache_tokens": float(model.cache.tree.total_tokens),
                "retractions_total": float(model.retractions),
                "idle_s": self._idle_s,
                **{name: float(count) for name, count in keeps.items()},
            },
        )

    def follow_cache(self, told: CacheTold) -> None:
        """See Engine."""
        self._cache_told = told

    async def snapshot_cache(self) -> None:
        """See Engine."""
        if self._ledger is not None:
            self._ledger.snapshot_wanted = True
            self._tell_of_cache()

    def _tell_of_cache(self) -> None:
        if self._ledger is not None and self._cache_told is not None:
            for news in self._ledger.take():
                self._cache_told(cache_news.encode(news))

    async def flush_cache(self) -> bool:
        """See Engine."""
        flushed = self._model.flush_cache()
        self._tell_of_cache()
        return flushed

    async def stop(self) -> None:
        """See Engine. Open answers raise EngineDied, and their requests finish as aborted."""
        await self._end(EngineDied("the engine was stopped"), Outcome.ABORTED, None)

    async def crash(self) -> None:
        """Die as a real engine's process can, for tests: requests fail, ``events`` raises EngineDied."""
        died = EngineDied("the simulated engine crashed")
        await self._end(died, Outcome.FAILED, died)

    async def _end(self, gone: EngineDied, outcome: Outcome, last: EngineDied | None) -> None:
        if self._gone is not None:
            return
        self._gone = gone
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        now = time.monotonic()
        for ended in self._model.close(outcome):
            self._finished(ended, now)
            self._open.pop(ended.request_id).chunks.put_nowait(gone)
        self._events.put_nowait(last)

    def _check_alive(self) -> None:
        if self._gone is not None:
            raise self._gone
        if self._task is None:
            raise EngineDied("the engine was not started")
        if self._task.done():
            raise EngineDied(f"the engine's task ended: {self._task}")

    # Running

    async def _run(self) -> None:
        try:
            await self._run_steps()
        except Exception as error:
            died = EngineDied(f"the step model failed: {error!r}")
            died.__cause__ = error
            self._gone = died
            now = time.monotonic()
            for request_id, opened in self._open.items():
                opened.chunks.put_nowait(died)
                a = opened.answer
                counts = (a.prompt_tokens, a.cached_tokens, a.output_tokens)
                self._finished(Ended(request_id, Outcome.FAILED, *counts), now)
            self._open.clear()
            self._events.put_nowait(died)

    async def _run_steps(self) -> None:
        end_s = time.monotonic()
        while True:
            begun = self._model.begin_step()
            if begun is None:
                self._work.clear()
                idle_since_s = time.monotonic()
                await self._work.wait()
                end_s = time.monotonic()
                self._idle_s += end_s - idle_since_s
                continue
            now = time.monotonic()
            for admitted in begun.admitted:
                self._open[admitted.request_id].answer.cached_tokens = admitted.cached_tokens
                self._events.put_nowait(
                    PrefillStarted(
                        admitted.request_id, now, admitted.prompt_tokens, admitted.cached_tokens
                    )
                )
            # Back to back from the end that was due, so that timer slack does not add up.
            end_s = max(end_s, now - _CATCH_UP_S) + begun.duration_s / self.params.speed
            await asyncio.sleep(max(0.0, end_s - time.monotonic()))
            self._report(self._model.end_step(), time.monotonic())

    def _report(self, end: StepEnd, now: float) -> None:
        self._tell_of_cache()
        for request_id in end.prefilled:
            self._events.put_nowait(PrefillEnded(request_id, now))
        for request_id in end.tokens:
            opened = self._open[request_id]
            opened.put(opened.answer.token())
        for ended in end.ended:
            self._close(ended, now)

    def _close(self, ended: Ended, now: float) -> None:
        opened = self._open.pop(ended.request_id)
        finished = ended.outcome is Outcome.FINISHED
        opened.put(opened.answer.end(opened.asked.finish_reason if finished else "abort"))
        opened.chunks.put_nowait(None)
        self._finished(ended, now)

    def _finished(self, ended: Ended, now: float) -> None:
        self._events.put_nowait(
            Finished(
                ended.request_id,
                now,
                ended.outcome,
                ended.prompt_tokens,
                ended.cached_tokens,
                ended.output_tokens,
            )
        )


async def _chunks(
    chunks: asyncio.Queue[ResponseChunk | EngineDied | None],
) -> AsyncIterator[ResponseChunk]:
    while (chunk := await chunks.get()) is not None:
        if isinstance(chunk, EngineDied):
            raise chunk
        yield chunk


_SET_ELSEWHERE = {
    "anchor_rank": "retention.params.anchor_rank",
    "max_running": "replicas.max_running",
    "model": "model.name",
    "protect_anchors": "retention.params.protect_anchors",
    "protect_share": "retention.params.protect_share",
    "retention": "retention.policy",
}


def from_config(config: PrismConfig) -> SimulatedEngine:
    """The simulated engine of a config: ``engine.simulated`` over what other sections say.

    Raises ConfigError.
    """
    from prism_ray.config_errors import ConfigError, Problem
    from prism_ray.config_params import parameter_problems

    own, retention = config.engine.simulated, config.retention.params
    problems = [
        Problem(f"engine.simulated.{name}", f"nothing here: set {path}", own[name])
        for name, path in _SET_ELSEWHERE.items()
        if name in own
    ]
    problems += parameter_problems("retention.params", retention, RetentionParams.from_mapping)
    if problems:
        raise ConfigError(problems)

    def params(simulated: Mapping[str, Any]) -> SimulatedParams:
        return SimulatedParams.from_mapping(
            {
                **simulated,
                **retention,
                "max_running": config.replicas.max_running,
                "retention": config.retention.policy,
                "model": config.model.name,
            }
        )

    problems = list(parameter_problems("engine.simulated", own, params))
    if problems:
        raise ConfigError(problems)
    return SimulatedEngine(params(own))
