"""The QAS actor: one per application, the global window. Carries messages to and from the dispatcher.

It is a deployment actor of the ingress deployment: the Serve controller creates it, checks it and
re-creates it. Ingresses submit tickets and get decisions; each replica polls for its plans and
reports what its engine did. Nothing here schedules.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray

from prism_ray.config import PrismConfig
from prism_ray.dispatch import Dispatch, Dispatcher
from prism_ray.model import Decision, Ticket
from prism_ray.placement import make_placement, placements_of
from prism_ray.serving.attendance import Attendance
from prism_ray.serving.drain_rate import DrainRate
from prism_ray.serving.exposition import prometheus_text
from prism_ray.serving.line import LineServer
from prism_ray.serving.messages import (
    Hello,
    PlanDelivery,
    QasAddress,
    QasStatus,
    Report,
    SubmitError,
    Told,
    Undecided,
)
from prism_ray.serving.meters import Counts
from prism_ray.serving.qas_replicas import QasReplicas
from prism_ray.serving.qas_state import oldest_wait_s, one_tenant_asks
from prism_ray.serving.qas_telemetry import QasTelemetry
from prism_ray.serving.tenants import fair_scheduler, queue_limits, tenant_queues
from prism_ray.serving.tuning import retuned
from prism_ray.serving.waiting import set_within

logger = logging.getLogger(__name__)

POLL_S = 5.0
"""A replica's poll without a plan is answered after this long, so that dead pollers do not pile up."""

HOUSEKEEPING_S = 0.25
"""How often silences are looked at and telemetry is handed over."""

PAUSE_S = 1.0
"""Housekeeping that comes this much late: the actor itself stood still and could hear nobody."""

NO_REPLICA_S = 60.0
"""What waits is refused after this long without any replica; a restarting one comes back sooner."""

CANCELLED_MAX = 4096
"""Cancellations remembered that came before their ticket: actor calls may overtake each other."""

ON_LINES = ("submit", "cancel", "hello", "plans", "report")
"""What ingresses and replicas say on a line; everything else is a Ray actor call."""


class QasActor:
    """See the module. All methods run on one event loop; none blocks it."""

    def __init__(
        self, app: str, config_json: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = self._deployed = config = PrismConfig.from_json(config_json)
        self._clock = clock
        self.epoch = uuid.uuid4().hex
        scheduler = fair_scheduler(config)
        self._dispatcher = Dispatcher(
            scheduler,
            make_placement(config.placement.policy, config.placement.params),
            self.epoch,
            config.scheduler.round_interval_s,
        )
        self._futures: dict[str, tuple[int, asyncio.Future[Decision | Undecided]]] = {}
        self._queues = tenant_queues(config, scheduler)
        self._last_round_dispatched = False
        self._attendance = Attendance()
        self._cancelled: OrderedDict[str, int] = OrderedDict()
        self._deadlines: list[tuple[float, str, int]] = []
        self._replica_seen_s = clock()
        self._drain = DrainRate()
        self._wake = asyncio.Event()
        self._telemetry = QasTelemetry(app, config, self._dispatcher, clock)
        self._replicas = QasReplicas(
            self._dispatcher, self._attendance, self._telemetry, self._wake.set
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._lines = LineServer(self, ON_LINES)

    # -- ingress --------------------------------------------------------------------------------

    async def address(self) -> QasAddress:
        """Name, epoch and lines, for an ingress to hand on to replicas."""
        self._ensure_started()
        name = ray.get_runtime_context().get_actor_name() or ""
        line = await self._lines.address(ray.util.get_node_ip_address())
        return QasAddress(name, self.epoch, line)

    async def submit(
        self, ticket: Ticket, waited_s: float, deadline_in_s: float | None, at_head: bool
    ) -> Decision | Undecided:
        """Wait in the window until decided. ``waited_s`` is the request's age at its ingress.

        ``at_head``: it was let in before, so the queue's limits do not count.
        """
        self._ensure_started()
        now = self._clock()
        self._attendance.heard(ticket.ingress, now)
        if self._cancelled.pop(ticket.request_id, -1) >= ticket.attempt:
            return Undecided(SubmitError.CANCELLED)
        refusal = self._refusal(ticket, at_head)
        if refusal is not None:
            return refusal
        ticket = replace(
            ticket,
            arrival_s=now - waited_s,
            deadline_s=None if deadline_in_s is None else now + deadline_in_s,
        )
        sent_before = self._sent(ticket.request_id)
        try:
            self._dispatcher.submit(ticket, at_head=at_head)
        except ValueError:
            return Undecided(SubmitError.STALE_ATTEMPT)
        if sent_before is not None:
            replica, attempt = sent_before
            self._replicas.void(replica, ticket.request_id, attempt)
        self._answer(ticket.request_id, Undecided(SubmitError.STALE_ATTEMPT))
        future: asyncio.Future[Decision | Undecided] = asyncio.get_running_loop().create_future()
        self._futures[ticket.request_id] = (ticket.attempt, future)
        self._queues.enter(ticket.tenant, ticket.skeleton.prompt_tokens)
        if ticket.deadline_s is not None:
            heapq.heappush(self._deadlines, (ticket.deadline_s, ticket.request_id, ticket.attempt))
        self._wake.set()
        try:
            return await future
        finally:
            self._queues.leave(ticket.tenant, ticket.skeleton.prompt_tokens)

    async def cancel(self, request_id: str, attempt: int) -> None:
        """Forget this attempt (and older ones), and tell a replica that has not submitted it yet."""
        held = self._futures.get(request_id)
        if held is not None:
            if held[0] <= attempt:
                self._dispatcher.cancel(request_id)
                self._answer(request_id, Undecided(SubmitError.CANCELLED))
                self._wake.set()
            return
        sent = self._sent(request_id)
        if sent is None:
            self._cancelled[request_id] = attempt
            if len(self._cancelled) > CANCELLED_MAX:
                self._cancelled.popitem(last=False)
        elif sent[1] <= attempt:
            # It still occupies the replica: the books close when that says that it let go.
            self._replicas.void(sent[0], request_id, sent[1])

    async def ping(self, ingress: str = "", members: frozenset[str] | None = None) -> QasStatus:
        """Heartbeat of an ingress, with the replicas that Serve told it of.

        The answer is also what it must know to check requests at the door.
        """
        self._ensure_started()
        now = self._clock()
        self._attendance.heard(ingress, now, members)
        self._replicas.look(now)
        return QasStatus(
            self.epoch,
            self._replicas.open_for_work,
            len(self._dispatcher),
            *self._replicas.smallest(),
            self._replicas.names,
        )

    async def replica_gone(self, replica: str) -> None:
        """A call found the replica dead: nothing goes there until the replica itself is heard again."""
        self._replicas.suspect(replica, self._clock())

    async def replica_doubted(self, replica: str) -> None:
        """A call failed, and the replica may be alive: nothing goes there if its reports are late, too."""
        self._replicas.suspect(replica, self._clock(), if_late=True)

    async def tune(self, user_config: Mapping[str, Any]) -> None:
        """Take over what can be changed while running (see ``tuning``). Raises ConfigError."""
        self._config = retuned(self._deployed, user_config)
        self._dispatcher.round_interval_s = self._config.scheduler.round_interval_s
        self._queues.limits, self._queues.cap = queue_limits(self._config)
        self._wake.set()

    # -- replicas -------------------------------------------------------------------------------

    async def hello(self, hello: Hello) -> str:
        """A replica can take work; returns this QAS's epoch."""
        self._ensure_started()
        self._replicas.join(hello, self._clock())
        return self.epoch

    async def plans(self, replica: str, incarnation: str, read_version: int) -> PlanDelivery | None:
        """Long poll: what came after plan ``read_version``. None: this QAS does not know the replica."""
        channel = self._replicas.hear(replica, incarnation, self._clock())
        if channel is None:
            return None
        return await channel.deliver(self.epoch, read_version, POLL_S)

    async def report(self, report: Report) -> Told:
        """Events and absolute numbers of a replica."""
        return self._replicas.take(report, self._clock())

    # -- people ---------------------------------------------------------------------------------

    async def state(self, top: int = 20) -> dict[str, Any]:
        """What is going on, JSON-ready; decisions are None once several tenants are known."""
        now = self._clock()
        window = self._dispatcher.scheduler.describe(top)
        shown = one_tenant_asks(window)
        return {
            **self._books(),
            "oldest_wait_s": oldest_wait_s(self._dispatcher.scheduler.waiting(), now),
            "window": window,
            "recent": self._telemetry.recent(now),
            "decisions": self._dispatcher.last_decisions(top, now) if shown else None,
        }

    def _books(self) -> dict[str, Any]:
        """The part of the state that metrics are made of: numbers and replicas."""
        return {
            "epoch": self.epoch,
            "policy": self._config.scheduler.policy,
            "placement": self._config.placement.policy,
            "placements": placements_of(self._dispatcher.placement),
            "waiting": len(self._dispatcher),
            "sent": self._dispatcher.sent_count,
            "rounds": self._dispatcher.rounds,
            "replicas": self._replicas.states(),
            "telemetry": self._telemetry.describe(),
        }

    async def explain(self, request_id: str) -> dict[str, Any] | None:
        """Why a request went where it went (``Dispatcher.explain``); None if that is not known."""
        return self._dispatcher.explain(request_id, self._clock())

    async def count(self, counts: Counts) -> None:
        """An ingress's part of the application's metrics."""
        self._telemetry.meters.merge(counts)

    async def metrics(self, counts: Counts) -> bytes:
        """The application's metrics as Prometheus text, with what the asking ingress counted last."""
        self._telemetry.meters.merge(counts)
        self._telemetry.hand_over(self._books)
        return prometheus_text(self._telemetry.meters.total, self._books())

    async def flushed(self, replica: str) -> None:
        """The replica's prefix cache was emptied: nothing but what is in flight is there."""
        self._replicas.flushed(replica)

    async def check(self) -> dict[str, int]:
        """Recount every book (tests, operators); AssertionError if one is wrong."""
        self._dispatcher.check_integrity()
        waiting = {ticket.request_id for ticket in self._dispatcher.scheduler.waiting()}
        assert waiting == set(self._futures), "what waits and who waits for it differ"
        self._replicas.check_integrity()
        return {
            "waiting": len(self._dispatcher),
            "sent": self._dispatcher.sent_count,
            "futures": len(self._futures),
            "queued_tokens": self._queues.tokens,
        }

    async def tables(self) -> dict[str, int]:
        """Sizes of what is kept without being part of a request's books; all of them are bounded."""
        return {
            "ingresses": len(self._attendance),
            "cancelled_early": len(self._cancelled),
            "deadlines": len(self._deadlines),
        }

    # -- the loop -------------------------------------------------------------------------------

    def _ensure_started(self) -> None:
        # A Ray actor's constructor runs before its event loop does.
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._rounds(), name="prism-rounds"),
                asyncio.create_task(self._housekeeping(), name="prism-housekeeping"),
            ]
            for task in self._tasks:
                task.add_done_callback(self._die_with)
            self._telemetry.start()

    async def _rounds(self) -> None:
        while True:
            now = self._clock()
            self._expire(now)
            due = self._dispatcher.next_round_s(now)
            if due is not None and due <= now:
                dispatches = self._dispatcher.round(now)
                self._telemetry.round_took(self._clock() - now)
                self._publish(dispatches)
                # A round that dispatched nothing (the pool is full) is repeated on news only.
                due = (
                    None if not self._last_round_dispatched else self._dispatcher.next_round_s(now)
                )
                if due is not None and due <= now:
                    await asyncio.sleep(0)
                    continue
            if self._deadlines:
                due = min(self._deadlines[0][0], due or float("inf"))
            self._wake.clear()
            await set_within(self._wake, None if due is None else due - self._clock())

    def _expire(self, now: float) -> None:
        """Answer tickets whose deadline has passed while they waited."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id, attempt = heapq.heappop(self._deadlines)
            held = self._futures.get(request_id)
            if held is not None and held[0] == attempt:
                self._dispatcher.cancel(request_id)
                self._answer(request_id, Undecided(SubmitError.DEADLINE))

    def _publish(self, dispatches: list[Dispatch]) -> None:
        self._last_round_dispatched = bool(dispatches)
        for dispatch in dispatches:
            self._replicas.push(dispatch.plan)
            for decision in dispatch.decisions:
                self._answer(decision.request_id, decision)
            self._telemetry.decided(dispatch.decisions)
            if len(self._dispatcher):  # only while others wait does this say how fast room is made
                self._drain.add(len(dispatch.decisions), self._clock())

    def _answer(self, request_id: str, answer: Decision | Undecided) -> None:
        held = self._futures.pop(request_id, None)
        if held is not None and not held[1].done():
            held[1].set_result(answer)

    async def _housekeeping(self) -> None:
        due = self._clock() + HOUSEKEEPING_S
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            now = self._clock()
            if now - due >= PAUSE_S:
                self._excuse(now - due)
            due = now + HOUSEKEEPING_S
            self._tidy(now)
            self._telemetry.segments(self._dispatcher.scheduler)
            self._telemetry.checkpoint()
            self._telemetry.hand_over(self._books)
            self._telemetry.look(now)

    def _tidy(self, now: float) -> None:
        """Follow up silences: of ingresses, of replicas, of all replicas."""
        for ingress in self._attendance.leave_silent(now):
            waiting = [t for t in self._dispatcher.scheduler.waiting() if t.ingress == ingress]
            logger.warning("ingress %s is gone with %d requests", ingress[:8], len(waiting))
            self._give_up(waiting, SubmitError.FORGOTTEN)
        self._replicas.look(now)
        if len(self._replicas):
            self._replica_seen_s = now
        elif now - self._replica_seen_s >= NO_REPLICA_S:
            self._give_up(list(self._dispatcher.scheduler.waiting()), SubmitError.NO_REPLICA)

    def _give_up(self, tickets: list[Ticket], why: SubmitError) -> None:
        for ticket in tickets:
            self._dispatcher.cancel(ticket.request_id)
            self._answer(ticket.request_id, Undecided(why))

    def _excuse(self, pause_s: float) -> None:
        logger.warning("the QAS actor stood still for %.1f s", pause_s)
        self._attendance.excuse(pause_s)
        self._replicas.excuse(pause_s)

    def _die_with(self, task: asyncio.Task[None]) -> None:
        """A loop that failed leaves tickets waiting for ever: better a new actor at once."""
        if not task.cancelled() and task.exception() is not None:
            logger.critical("%s failed", task.get_name(), exc_info=task.exception())
            os._exit(1)

    def _refusal(self, ticket: Ticket, at_head: bool) -> Undecided | None:
        if at_head:
            return None
        if not len(self._replicas):
            return Undecided(SubmitError.NO_REPLICA)
        must_leave = self._queues.must_leave(ticket.tenant, ticket.skeleton.prompt_tokens)
        if not must_leave:
            return None
        return Undecided(SubmitError.QUEUE_FULL, self._drain.seconds_for(must_leave, self._clock()))

    def _sent(self, request_id: str) -> tuple[str, int] | None:
        """Replica and attempt of a request that was dispatched and has not come back."""
        replica = self._dispatcher.replica_of(request_id)
        if replica is None:
            return None
        return replica, self._dispatcher.seats[replica].sent[request_id].ticket.attempt
