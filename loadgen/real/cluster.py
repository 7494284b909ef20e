"""The application without Serve, in real time: the real dispatcher over real engines.

``RealCluster`` is to SGLang engines what ``VirtualCluster`` is to step models: the same dispatcher,
policy and placement, and no ingress, no Ray and no HTTP in between.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loadgen.real.answers import Answer, read_answer, request_body, streamed_body, streamed_ids
from loadgen.real.rows import RealRow
from loadgen.real.token_ids import AtomTokens
from loadgen.traces.base import Trace
from prism_ray import cache_news
from prism_ray.dart.anchors import skeleton_marks
from prism_ray.dart.demand import dump_hints
from prism_ray.dispatch import Dispatcher
from prism_ray.engine.base import (
    Engine,
    EngineCall,
    EngineDied,
    EngineEvent,
    EngineInfo,
    EngineRefused,
    Finished,
    PrefillEnded,
    PrefillStarted,
)
from prism_ray.model import (
    Atom,
    Completion,
    Decision,
    DemandTable,
    Order,
    Outcome,
    ReplicaCapacity,
    Ticket,
)


class RealArrival(NamedTuple):
    """A request that comes at ``ticket.arrival_s``, seconds after the run begins.

    ``private`` and ``output`` name its private and its generated tokens where another request
    continues them, by default they are its own. ``abort_s``: its client leaves so long after it came.
    """

    ticket: Ticket
    output_tokens: int
    private: tuple[Atom, ...] = ()
    output: tuple[Atom, ...] = ()
    abort_s: float | None = None

    def prompt(self, order: Order) -> tuple[Atom, ...]:
        """The whole prompt under ``order``."""
        skeleton = self.ticket.skeleton
        own = Atom(b"private of " + self.ticket.request_id.encode(), skeleton.private_tokens)
        private = self.private or ((own,) if own.tokens else ())
        return (*skeleton.path(order), *private)


def real_arrivals(trace: Trace, arrivals_s: Sequence[float]) -> list[RealArrival]:
    """A trace's requests, each at its time."""
    return [
        RealArrival(ticket, request.output_tokens, request.private, request.output)
        for request, ticket in zip(trace.requests, trace.tickets(arrivals_s), strict=True)
    ]


class Submission(NamedTuple):
    """What an engine was given, in the order in which it was: enough to give it again."""

    engine_id: str
    arrival: RealArrival
    decision: Decision
    table: DemandTable | None


class StartedEngine(NamedTuple):
    """A running engine and what it said of itself."""

    engine: Engine
    info: EngineInfo


class _Sent(NamedTuple):
    arrival: RealArrival
    row: RealRow


def capacity_of(info: EngineInfo) -> ReplicaCapacity:
    """What the dispatcher may send to an engine: credit of two chunks ahead."""
    chunk = info.chunked_prefill_tokens or info.max_prefill_tokens
    return ReplicaCapacity(
        info.pool_tokens,
        info.max_running,
        2 * chunk,
        info.page_size,
        info.context_length,
        info.tells_cache,
    )


class RealCluster:
    """A dispatcher over real engines, for one run. ``rows`` has every request by id.

    ``submissions`` is what the engines were given, ``report_delays_s`` how long each of their events
    was on its way.

    The engines outlive the run: flush them before the next. ``gaps`` asks for the two best tokens'
    log-probabilities; ``run_name`` keeps the ids of one run's requests apart from those of the next.
    ``stream``: answers come token by token, as to a client, and rows know when the first one came.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        engines: Mapping[str, StartedEngine],
        tokens: AtomTokens,
        *,
        gaps: bool = False,
        run_name: str = "",
        stream: bool = False,
    ) -> None:
        self.dispatcher = dispatcher
        self.rows: dict[str, RealRow] = {}
        self.engines = engines
        self.submissions: list[Submission] = []
        self.report_delays_s: list[float] = []
        self._tokens = tokens
        self._gaps = gaps
        self._run_name = run_name
        self._stream = stream
        self._sent: dict[str, _Sent] = {}
        self._engine_ids: dict[str, str] = {}
        self._arrivals: dict[str, RealArrival] = {}
        self._open: set[str] = set()
        self._answered: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        for name, started in engines.items():
            dispatcher.join(name, "first", capacity_of(started.info), 0.0)

    async def run(self, arrivals: Sequence[RealArrival]) -> dict[str, RealRow]:
        """Serve all arrivals, open loop, to their end. Raises EngineDied if an engine goes away."""
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._open = {arrival.ticket.request_id for arrival in arrivals}
        for name, started in self.engines.items():
            await self._follow_cache(name, started)
        self._task(self._arrive(sorted(arrivals, key=lambda a: a.ticket.arrival_s)))
        for name, started in self.engines.items():
            self._task(self._follow(name, started.engine))
        try:
            await self._over
        finally:
            if self._wake is not None:
                self._wake.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return self.rows

    # Time and tasks

    def _now(self) -> float:
        return self._loop.time() - self._start_s

    def _task(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    def _settle(self, request_id: str) -> None:
        self._open.discard(request_id)
        if not self._open and not self._over.done():
            self._over.set_result(None)

    # Arrivals and rounds

    async def _arrive(self, arrivals: Sequence[RealArrival]) -> None:
        if not arrivals:
            self._over.set_result(None)
        for arrival in arrivals:
            ticket = arrival.ticket
            await asyncio.sleep(ticket.arrival_s - self._now())
            now_s = self._now()
            self.rows[ticket.request_id] = RealRow(
                ticket.request_id,
                ticket.arrival_s,
                ticket.skeleton.prompt_tokens,
                lateness_s=now_s - ticket.arrival_s,
            )
            self._arrivals[ticket.request_id] = arrival
            if arrival.abort_s is not None:
                self._loop.call_later(arrival.abort_s, self._client_leaves, ticket.request_id)
            self.dispatcher.submit(ticket)
            self._pump()

    def _client_leaves(self, request_id: str) -> None:
        if request_id not in self._open:
            return
        sent = self._engine_ids.get(request_id)
        if sent is None:
            self.dispatcher.cancel(request_id)
            row = self.rows[request_id]
            row.outcome, row.finished_s = Outcome.ABORTED, self._now()
            self._settle(request_id)
        else:
            self._task(self.engines[self.rows[request_id].replica].engine.abort(sent))

    def _pump(self) -> None:
        """Rounds that are due; one that dispatched nothing is repeated on news only."""
        while True:
            now_s = self._now()
            due_s = self.dispatcher.next_round_s(now_s)
            if due_s is None:
                return
            if due_s > now_s:
                self._wake_at(due_s)
                return
            dispatches = self.dispatcher.round(now_s)
            if not dispatches:
                return
            for dispatch in dispatches:
                table: DemandTable | None = dispatch.plan.demand
                for decision in dispatch.decisions:
                    self._submit(decision, table, now_s)
                    table = None

    def _wake_at(self, due_s: float) -> None:
        if self._wake is None:
            self._wake = self._loop.call_at(self._start_s + due_s, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self._pump()

    # Engines

    def _submit(self, decision: Decision, table: DemandTable | None, now_s: float) -> None:
        arrival, row = self._arrivals[decision.request_id], self.rows[decision.request_id]
        row.replica, row.order, row.decided_s = decision.replica, decision.order, now_s
        row.reason = decision.reason
        row.predicted_cached_tokens = decision.predicted_cached_tokens
        engine = self.engines[decision.replica]
        engine_id = _engine_id(self._run_name, decision.request_id)
        self.submissions.append(Submission(engine_id, arrival, decision, table))
        self._sent[engine_id] = _Sent(arrival, row)
        self._engine_ids[decision.request_id] = engine_id
        # Tasks begin in the order in which they are made, and submit is ordered from its first line.
        call = self._call(engine_id, arrival, decision, table, engine.info)
        self._task(self._serve(decision.replica, call))

    def _call(
        self,
        engine_id: str,
        arrival: RealArrival,
        decision: Decision,
        table: DemandTable | None,
        info: EngineInfo,
    ) -> EngineCall:
        skeleton = arrival.ticket.skeleton
        marks = skeleton_marks(skeleton, decision.order)
        hints = None
        if table is not None and info.takes_hints:
            hints = dump_hints(table, self.dispatcher.epoch)
        return EngineCall(
            engine_id,
            "completions",
            self._body(arrival),
            self._tokens.prompt(arrival.prompt(decision.order)),
            boundaries=tuple(mark.offset_tokens for mark in marks),
            segments=tuple(mark.segment for mark in marks),
            path_keys=tuple(mark.path_key for mark in marks),
            hints=hints,
            system_tokens=skeleton.system.tokens if skeleton.system else 0,
        )

    def _body(self, arrival: RealArrival) -> dict[str, Any]:
        if self._stream:
            return streamed_body(arrival.output_tokens, ids=bool(arrival.output))
        return request_body(arrival.output_tokens, gaps=self._gaps)

    async def _serve(self, name: str, call: EngineCall) -> None:
        arrival, row = self._sent[call.request_id]
        try:
            chunks = await self.engines[name].engine.submit(call)
        except EngineRefused as refused:
            self._refused(name, arrival.ticket, row, str(refused))
            return
        try:
            async for chunk in chunks:
                if row.first_chunk_s is None:
                    row.first_chunk_s = self._now()
                if self._stream:
                    ids = (*row.answer.token_ids, *streamed_ids(chunk.payload))
                    row.answer = Answer(ids)
                else:
                    row.answer = read_answer(chunk.payload)
        except EngineRefused as refused:  # its Finished event says how it ended
            row.error = str(refused)
        self._answered.add(row.request_id)
        self._tokens.bind(arrival.output, row.answer.token_ids)
        self._settle_if_over(row)

    def _refused(self, name: str, ticket: Ticket, row: RealRow, reason: str) -> None:
        """The engine did not take it: nothing of it will be heard."""
        row.error, row.outcome, row.finished_s = reason, Outcome.FAILED, self._now()
        done = Completion(ticket.request_id, ticket.attempt, Outcome.FAILED)
        self.dispatcher.completed(name, done)
        self._settle(ticket.request_id)
        self._pump()

    async def _follow_cache(self, name: str, started: StartedEngine) -> None:
        """What the engine says of its cache goes to its seat, everything cached first."""
        if not started.info.tells_cache:
            return
        seat = self.dispatcher.seats[name]
        started.engine.follow_cache(lambda message: seat.cache_news(cache_news.decode(message)))
        await started.engine.snapshot_cache()

    async def _follow(self, name: str, engine: Engine) -> None:
        async for event in engine.events():
            sent = self._sent.get(event.request_id)
            if sent is not None:
                self.report_delays_s.append(self._loop.time() - event.at_s)
                self._happened(name, sent, event)
                self._pump()
        raise EngineDied(f"{name} ended")

    def _happened(self, name: str, sent: _Sent, event: EngineEvent) -> None:
        ticket, row, at_s = sent.arrival.ticket, sent.row, event.at_s - self._start_s
        if isinstance(event, PrefillStarted):
            row.prefill_s, row.cached_tokens = at_s, event.cached_tokens
        elif isinstance(event, PrefillEnded):
            row.first_token_s = at_s
            self.dispatcher.prefill_ended(name, ticket.request_id, ticket.attempt, at_s)
        elif isinstance(event, Finished):
            row.finished_s, row.outcome = at_s, event.outcome
            row.output_tokens = event.output_tokens
            done = Completion(
                ticket.request_id,
                ticket.attempt,
                event.outcome,
                event.prompt_tokens,
                event.cached_tokens,
                event.output_tokens,
            )
            self.dispatcher.completed(name, done, at_s)
            self._settle_if_over(row)

    def _settle_if_over(self, row: RealRow) -> None:
        """A request is over when the engine let it go and its answer is here."""
        answered = row.request_id in self._answered
        if row.outcome is not None and (answered or row.outcome is not Outcome.FINISHED):
            self._settle(row.request_id)


def _engine_id(run_name: str, request_id: str) -> str:
    """32 hex digits; SGLang takes request ids that no other begins with."""
    return hashlib.blake2b(f"{run_name}/{request_id}".encode(), digest_size=16).hexdigest()
