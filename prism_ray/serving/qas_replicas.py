"""The replicas as the QAS actor deals with them: who joined, what they report, who fell silent.

Carries messages between their channels and the dispatcher; requests and ingresses are the actor's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from prism_ray import cache_news
from prism_ray.dispatch import Dispatcher
from prism_ray.dispatch.seat import Seat
from prism_ray.model import Plan
from prism_ray.serving.attendance import Attendance
from prism_ray.serving.messages import Heard, Hello, PrefillDone, Report, Told
from prism_ray.serving.qas_channel import QasChannel
from prism_ray.serving.qas_state import replica_state
from prism_ray.serving.qas_telemetry import QasTelemetry

logger = logging.getLogger(__name__)


class QasReplicas:
    """One channel and one seat for each replica that said hello. ``wake``: a round may be due."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        attendance: Attendance,
        telemetry: QasTelemetry,
        wake: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._attendance = attendance
        self._telemetry = telemetry
        self._wake = wake
        self._channels: dict[str, QasChannel] = {}

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._channels))

    @property
    def open_for_work(self) -> tuple[str, ...]:
        """Replicas that requests are decided for."""
        return tuple(n for n in self.names if not self._dispatcher.seats[n].draining)

    def smallest(self) -> tuple[int, int]:
        """Context and pool in tokens, the least of all; 0 while there is no replica."""
        capacities = [channel.hello.capacity for channel in self._channels.values()]
        return (
            min((c.context_length for c in capacities), default=0),
            min((c.pool_tokens for c in capacities), default=0),
        )

    # -- in -------------------------------------------------------------------------------------

    def join(self, hello: Hello, now_s: float) -> None:
        """A replica can take work; a new life of it takes the old one's place."""
        known = self._channels.get(hello.replica)
        if known is None or known.hello.incarnation != hello.incarnation:
            if known is not None:
                known.close()
            self._dispatcher.join(hello.replica, hello.incarnation, hello.capacity, now_s)
            self._channels[hello.replica] = QasChannel(hello, now_s)
            self._telemetry.joined(hello.replica)
            logger.info("replica %s joined: %s", hello.replica, hello.capacity)
        self.look(now_s)
        self._wake()

    def hear(self, replica: str, incarnation: str, now_s: float) -> QasChannel | None:
        """The channel of a replica that says something; None for a life that is not known."""
        channel = self._channels.get(replica)
        if channel is None or channel.hello.incarnation != incarnation:
            return None
        channel.hear(now_s)
        if self._dispatcher.seats[replica].draining:
            self.look(now_s)
        return channel

    def take(self, report: Report, now_s: float) -> Told:
        """A report's events and absolute numbers, each number once."""
        channel = self.hear(report.replica, report.incarnation, now_s)
        if channel is None:
            return Told(Heard.UNKNOWN)
        seat = self._dispatcher.seats[report.replica]
        if channel.is_news(report):
            self._book(report, seat, now_s)
            self._wake()
        heard = Heard.SNAPSHOT_WANTED if seat.wants_snapshot else Heard.TAKEN
        if report.snapshot is None:
            return Told(heard)
        return Told(heard, self._dispatcher.queued_tokens(report.replica))

    def _book(self, report: Report, seat: Seat, now_s: float) -> None:
        name = report.replica
        # Before the ends of the prefills that it tells of: what is computed is resident by then.
        for message in report.cache:
            self._hear_of_cache(seat, message)
        for event in report.prefilled:
            self._compare(seat, event)
            self._dispatcher.prefill_ended(name, event.request_id, event.attempt, now_s)
        for entry in report.refused:
            self._dispatcher.refused(name, entry.request_id, entry.attempt)
        for completion in report.completed:
            self._dispatcher.completed(name, completion, now_s)
        if report.snapshot is not None:
            self._dispatcher.snapshot(report.snapshot, report.plan_version)
            self._telemetry.snapshot(report.snapshot, seat.credit_tokens, seat.residency.state)

    @staticmethod
    def _hear_of_cache(seat: Seat, message: bytes) -> None:
        """What cannot be read counts as lost: the next message shows the gap."""
        try:
            seat.cache_news(cache_news.decode(message))
        except ValueError as error:
            logger.warning("replica %s: %s", seat.replica, error)

    def _compare(self, seat: Seat, event: PrefillDone) -> None:
        """Count what the engine had cached, and how far the prediction was off.

        Hits beyond the global prefix are counted apart: agents share that prefix anyway.
        """
        self._telemetry.prefilled(event.prompt_tokens, event.cached_tokens)
        sent = seat.sent.get(event.request_id)
        if sent is not None and sent.ticket.attempt == event.attempt and event.prompt_tokens:
            predicted = sent.ticket.skeleton.prompt_tokens - sent.uncached_tokens
            self._telemetry.mispredicted(abs(predicted - event.cached_tokens))
            shared = sent.ticket.skeleton.global_tokens
            beyond = max(0, event.cached_tokens - shared)
            self._telemetry.non_global(event.prompt_tokens - shared, beyond)

    def flushed(self, replica: str) -> None:
        """Its prefix cache was emptied: nothing but what is in flight is there."""
        self._dispatcher.flushed(replica)

    # -- out ------------------------------------------------------------------------------------

    def push(self, plan: Plan) -> None:
        self._channels[plan.replica].push(plan)

    def void(self, replica: str, request_id: str, attempt: int) -> None:
        self._channels[replica].void(request_id, attempt)

    def states(self) -> list[dict[str, Any]]:
        """What is known of each, for people."""
        told = self._dispatcher
        return [
            replica_state(
                told.seats[name],
                channel.hello.model,
                told.dispatched[name],
                told.queued_tokens(name),
                channel.engine_counts,
            )
            for name, channel in sorted(self._channels.items())
        ]

    # -- silence --------------------------------------------------------------------------------

    def suspect(self, replica: str, now_s: float, *, if_late: bool = False) -> None:
        """A call found it dead: nothing goes there until the replica itself is heard again.

        ``if_late``: the caller may be the one with the broken connection; what it says counts only of a
        replica that this QAS, too, has not heard of lately.
        """
        channel = self._channels.get(replica)
        if channel is not None and (not if_late or channel.late(now_s)):
            channel.suspected = True
            self.look(now_s)

    def look(self, now_s: float) -> None:
        """Close the books of those that are gone; nothing new for those that are silent or leave."""
        for name, channel in list(self._channels.items()):
            serve_runs_it = self._attendance.runs(name)
            if channel.gone(now_s, serve_runs_it):
                lost = self._dispatcher.leave(name)
                self._channels.pop(name).close()
                logger.warning("replica %s is gone with %d requests", name, len(lost))
                continue
            seat = self._dispatcher.seats[name]
            draining = channel.paused(now_s) or not serve_runs_it
            if draining != seat.draining:
                logger.info("replica %s %s", name, "gets nothing new" if draining else "is back")
                seat.draining = draining
                self._wake()

    def excuse(self, pause_s: float) -> None:
        """Nobody could be heard for so long."""
        for channel in self._channels.values():
            channel.heard_s += pause_s

    def check_integrity(self) -> None:
        assert set(self._channels) == set(self._dispatcher.seats)
