"""The SGLang engine behind the Engine protocol: the replica's side of one engine process.

Talks to ``sglang_host`` over a socket (requests, answers) and hears SGLang's scheduler process
directly (reports). Imports neither SGLang nor torch, so a replica stays light.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_ray.dart.control import RetentionStats
from prism_ray.dart.sglang_plugin import ENGINES_OWN
from prism_ray.engine.base import (
    CacheTold,
    EngineCall,
    EngineDied,
    EngineEvent,
    EngineInfo,
    EngineLoad,
    EngineRefused,
    ResponseChunk,
)
from prism_ray.engine.call_anchors import call_hints
from prism_ray.engine.sglang_bodies import (
    TokenCounter,
    check_call,
    error_status,
    nested_error,
    openai_error,
)
from prism_ray.engine.sglang_events import (
    EVENTS_ADDRESS_VARIABLE,
    EventLedger,
    ReportKind,
    ResponseEnd,
    decode,
    events_address,
    questions_address,
)
from prism_ray.engine.sglang_launch import (
    check_plugin_installed,
    launch_args,
    launch_environment,
)
from prism_ray.engine.sglang_process import EngineProcess
from prism_ray.engine.sglang_version import check_sglang_version
from prism_ray.engine.sglang_wire import Frame, FrameSender, ToHost, ToReplica, frames

if TYPE_CHECKING:
    from prism_ray.config import PrismConfig

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0
OVERDUE_CHECK_S = 0.5
_REQUEST_ID = re.compile(r"[0-9a-f]{32}")

_Answer = bytes | Exception | None
"""What a response's queue carries; None is its end. Bytes come with the output tokens so far."""


class SglangEngine:
    """One SGLang engine in a process group of its own (prism_ray.engine.base.Engine).

    ``server_args``: SGLang's ServerArgs by field name, next to ``sglang_launch.OUR_SERVER_ARGS``;
    ValueError if one contradicts those. ``cpu``: run without a GPU, with the CPU arguments as defaults and
    ``cpu_threads`` OpenMP threads. ``environment``: more variables for the engine's processes.
    ``retention`` and its parameters: what the cache keeps; ``lru`` is SGLang's own cache, which takes
    no hints. ``grace_s``: see EventLedger.
    """

    def __init__(
        self,
        model_path: str,
        server_args: Mapping[str, Any] | None = None,
        *,
        cpu: bool = False,
        cpu_threads: int = 1,
        environment: Mapping[str, str] | None = None,
        retention: str = "dart",
        retention_params: Mapping[str, Any] | None = None,
        start_timeout_s: float = 900.0,
        grace_s: float = 4.0,
    ) -> None:
        self._takes_hints = retention != ENGINES_OWN
        self._server_args = launch_args(model_path, server_args or {}, retention, cpu)
        self._environment = launch_environment(
            environment or {}, retention, retention_params or {}, cpu_threads if cpu else None
        )
        self._start_timeout_s = start_timeout_s
        self._ledger = EventLedger(grace_s)
        self._events: asyncio.Queue[EngineEvent | EngineDied | None] = asyncio.Queue()
        self._answers: dict[str, asyncio.Queue[tuple[_Answer, int]]] = {}
        self._accepting: dict[str, asyncio.Future[None]] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._hello = asyncio.Event()
        self._tells_cache = False
        self._cache_told: CacheTold | None = None
        self._questions_socket: Any = None
        self.scratch_directory: Path | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._process: EngineProcess | None = None
        self._sender: FrameSender | None = None
        self._ended: EngineDied | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id of the engine, which leads its process group; None before it was started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> EngineInfo:
        """See Engine. Raises UnsupportedSglang, or EngineDied with the reason if it cannot start."""
        check_sglang_version()
        check_plugin_installed()
        self.scratch_directory = Path(tempfile.mkdtemp(prefix="prism-engine-"))
        address = events_address(self.scratch_directory)
        self._ready = asyncio.get_running_loop().create_future()
        self._spawn_task(self._follow_reports(_bound_socket("PULL", address)))
        self._questions_socket = _bound_socket("PUSH", questions_address(address))
        variables = {**self._environment, EVENTS_ADDRESS_VARIABLE: address}
        self._process = await asyncio.to_thread(EngineProcess.spawn, variables)
        reader, writer = await asyncio.open_connection(sock=self._process.connection)
        self._sender = FrameSender(writer)
        self._sender.send(ToHost.START, self._server_args)
        self._spawn_task(self._follow_frames(reader))
        self._spawn_task(self._watch_overdue())
        try:
            async with asyncio.timeout(self._start_timeout_s):
                info = await self._ready
                await self._hello.wait()
        except BaseException:
            await asyncio.to_thread(self._process.kill)
            await self.stop()
            raise
        return replace(info, takes_hints=self._takes_hints, tells_cache=self._tells_cache)

    async def submit(self, call: EngineCall) -> AsyncIterator[ResponseChunk]:
        """See Engine. ``call.request_id`` must be 32 hex digits: SGLang aborts by prefix.

        What SGLang finds wrong only in its scheduler (a grammar that does not compile, a full queue)
        raises EngineRefused from the iterator instead, and so does an error in mid-stream.
        """
        sender = self._alive()
        if not _REQUEST_ID.fullmatch(call.request_id):
            raise ValueError(f"request id {call.request_id!r} is not 32 hex digits")
        check_call(call)
        self._ledger.submitted(call.request_id, len(call.prompt_ids))
        answer: asyncio.Queue[tuple[_Answer, int]] = asyncio.Queue()
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers[call.request_id] = answer
        self._accepting[call.request_id] = accepted
        hints = call_hints(call) if self._takes_hints else None
        # No await before this line: the order of calls is the order of frames.
        try:
            sender.send(
                ToHost.SUBMIT,
                call.request_id,
                call.endpoint,
                call.body,
                call.prompt_ids,
                hints,
                call.cache_salt,
            )
        except (OverflowError, TypeError, ValueError) as error:
            self._withdraw(call.request_id)
            message = f"the body cannot be sent to the engine: {error}"
            raise EngineRefused(400, openai_error(message, 400)) from None
        try:
            await accepted
        except asyncio.CancelledError:
            await self.abort(call.request_id)
            raise
        return _chunks(answer)

    async def abort(self, request_id: str) -> None:
        """See Engine."""
        if request_id in self._ledger and self._ended is None and self._sender is not None:
            self._ledger.abort_requested(request_id)
            self._sender.send(ToHost.ABORT, request_id)

    async def events(self) -> AsyncIterator[EngineEvent]:
        """See Engine."""
        while (event := await self._events.get()) is not None:
            if isinstance(event, EngineDied):
                raise event
            yield event

    def follow_cache(self, told: CacheTold) -> None:
        """See Engine."""
        self._cache_told = told

    async def snapshot_cache(self) -> None:
        """See Engine."""
        if self._tells_cache and self._ended is None:
            await self._questions_socket.send(b"snapshot")
            await self._ask(ToHost.WAKE)

    async def load(self) -> EngineLoad:
        """See Engine. Requests are counted here and exact; the pool is SGLang's last snapshot.

        SGLang takes one with every prefill, every ``load_snapshot_publish_interval`` decode steps
        and when it falls idle. Tokens that only the cache holds are free, not used.
        """
        snapshot = await self._ask(ToHost.LOAD)
        return EngineLoad(
            running=self._ledger.running,
            waiting=self._ledger.waiting,
            pool_used_tokens=snapshot.get("num_used_tokens", 0),
            evicted_tokens_total=self._ledger.evicted_tokens_total,
            extra={
                "lost_reports_total": float(self._ledger.lost_reports),
                "decode_tokens_per_s": snapshot.get("gen_throughput", 0.0),
                **_stats(self._ledger.stats),
            },
        )

    async def flush_cache(self) -> bool:
        """See Engine."""
        return bool(await self._ask(ToHost.FLUSH))

    async def stop(self) -> None:
        """See Engine. Safe to repeat."""
        self._stopping = True
        if self._process is not None:
            if self._sender is not None and self._ended is None:
                self._sender.send(ToHost.STOP)
                self._sender.flush()
            await asyncio.to_thread(_end, self._process)
        self._end(EngineDied("the engine was stopped"))
        for task in self._tasks:
            task.cancel()
        if self._sender is not None:
            self._sender.close()
        if self._questions_socket is not None:
            self._questions_socket.close(linger=0)
        if self.scratch_directory is not None:
            shutil.rmtree(self.scratch_directory, ignore_errors=True)

    def _alive(self) -> FrameSender:
        if self._ended is not None:
            raise self._ended
        if self._sender is None:
            raise EngineDied("the engine was not started")
        return self._sender

    def _spawn_task(self, work: Any) -> None:
        async def watched() -> None:
            try:
                await work
            except Exception as error:
                logger.exception("the engine cannot be followed")
                await self._give_up(f"the engine cannot be followed: {error!r}")

        self._tasks.append(asyncio.create_task(watched()))

    async def _ask(self, kind: ToHost) -> Any:
        sender = self._alive()
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        sender.send(kind, number)
        try:
            return await answer
        finally:
            self._questions.pop(number, None)

    async def _follow_frames(self, reader: asyncio.StreamReader) -> None:
        reason = "the engine's process ended; its log says why"
        try:
            async for frame in frames(reader):
                if frame[0] == ToReplica.FAILED:
                    reason = f"the engine did not start: {frame[1]}"
                else:
                    self._take(frame)
        except Exception as error:
            reason = f"the engine's answers cannot be followed: {error!r}"
        await self._give_up(reason)

    async def _give_up(self, reason: str) -> None:
        self._end(EngineDied(reason))
        if self._process is not None and not self._stopping:
            await asyncio.to_thread(self._process.kill)

    def _take(self, frame: Frame) -> None:
        kind = frame[0]
        if kind == ToReplica.CHUNK:
            _, request_id, payload, output_tokens = frame
            if answer := self._answers.get(request_id):
                answer.put_nowait((payload, output_tokens))
        elif kind == ToReplica.ACCEPTED:
            _settle(self._accepting.pop(frame[1], None), None)
        elif kind == ToReplica.ENDED:
            _, request_id, *end = frame
            self._response_ended(request_id, None, ResponseEnd(*end))
        elif kind == ToReplica.REFUSED:
            _, request_id, status, body = frame
            self._refused(request_id, EngineRefused(status, body))
        elif kind == ToReplica.ANSWER:
            _settle(self._questions.get(frame[1]), frame[2])
        elif kind == ToReplica.READY:
            _settle(self._ready, EngineInfo(**frame[1]))

    def _refused(self, request_id: str, refusal: EngineRefused) -> None:
        accepting = self._accepting.pop(request_id, None)
        if accepting is None:
            self._response_ended(request_id, refusal, ResponseEnd(aborted=True))
            return
        self._withdraw(request_id)
        if not accepting.done():
            accepting.set_exception(refusal)

    def _withdraw(self, request_id: str) -> None:
        """The engine never had this request."""
        self._accepting.pop(request_id, None)
        self._answers.pop(request_id, None)
        self._ledger.withdrawn(request_id)

    def _response_ended(self, request_id: str, error: Exception | None, end: ResponseEnd) -> None:
        # A short answer can be complete before its acceptance was looked at.
        _settle(self._accepting.pop(request_id, None), None)
        self._ledger.response_ended(request_id, end, time.monotonic())
        if answer := self._answers.pop(request_id, None):
            answer.put_nowait((error, 0))

    async def _follow_reports(self, socket: Any) -> None:
        try:
            while True:
                report = decode(await socket.recv())
                if report.kind is ReportKind.HELLO:
                    self._tells_cache = bool(report.cache)
                    self._hello.set()
                if report.cache and self._cache_told is not None:
                    self._cache_told(report.cache)
                for event in self._ledger.reported(report):
                    self._events.put_nowait(event)
        except Exception as error:
            await self._give_up(f"the engine's reports cannot be followed: {error!r}")
        finally:
            socket.close(linger=0)

    async def _watch_overdue(self) -> None:
        while True:
            await asyncio.sleep(OVERDUE_CHECK_S)
            for event in self._ledger.overdue(time.monotonic()):
                self._events.put_nowait(event)

    def _end(self, reason: EngineDied) -> None:
        """Everything that waits for the engine learns that it is gone; only the first reason counts."""
        if self._ended is not None:
            return
        self._ended = reason
        self._events.put_nowait(None if self._stopping else reason)
        for answer in self._answers.values():
            answer.put_nowait((reason, 0))
        for future in (self._ready, *self._accepting.values(), *self._questions.values()):
            if future is not None and not future.done():
                future.set_exception(reason)
                future.exception()  # a caller that has left need not be warned about it
        self._answers.clear()
        self._accepting.clear()


def from_config(config: PrismConfig) -> SglangEngine:
    """The SGLang engine of a config. Raises ConfigError if the model's directory is not there."""
    from prism_ray.engine_args import server_args

    model, tokenizer = config.model.resolved_path(), config.model.resolved_tokenizer()
    arguments = server_args(config, model, tokenizer)
    return SglangEngine(
        model,
        arguments,
        cpu=config.device == "cpu",
        retention=config.retention.policy,
        retention_params=config.retention.params,
    )


async def _chunks(answer: asyncio.Queue[tuple[_Answer, int]]) -> AsyncIterator[ResponseChunk]:
    counter = TokenCounter()
    while True:
        item, output_tokens = await answer.get()
        if item is None:
            return
        if isinstance(item, Exception):
            raise item
        payload = json.loads(item)
        status = error_status(payload)
        if status is not None:
            raise EngineRefused(status, nested_error(payload, status))
        yield ResponseChunk(payload, counter.take(payload, output_tokens))


def _stats(stats: tuple[int, ...]) -> dict[str, float]:
    """Retractions, and what a cache with retention counts, by name."""
    if not stats:
        return {}
    retractions, *cache = stats
    named = RetentionStats(*cache)._asdict() if cache else {}
    return {name: float(n) for name, n in {"retractions_total": retractions, **named}.items()}


def _settle(future: asyncio.Future[Any] | None, value: Any) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _end(process: EngineProcess) -> None:
    process.wait(STOP_TIMEOUT_S)
    process.kill()


def _bound_socket(kind: str, address: str) -> Any:
    import zmq
    import zmq.asyncio

    socket = zmq.asyncio.Context.instance().socket(getattr(zmq, kind))
    socket.set(zmq.RCVHWM, 0)
    socket.bind(address)
    return socket
