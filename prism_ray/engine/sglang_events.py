"""What SGLang's scheduler process reports, and how it becomes the engine's events.

``encode`` and ``decode`` are the wire form of one report; ``EventLedger`` merges reports with the
ends of responses so that each request finishes exactly once. What the cache holds travels along, as
``cache_news``. No socket, no clock, no SGLang here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgpack

from prism_ray.engine.base import EngineEvent, Finished, PrefillEnded, PrefillStarted
from prism_ray.model import Outcome

EVENTS_ADDRESS_VARIABLE = "PRISM_EVENTS_ADDR"
"""Environment variable of the engine's processes: the ZeroMQ address that takes the reports."""


def events_address(directory: Path) -> str:
    """The address of the socket in ``directory``, which no other user may enter."""
    return f"ipc://{directory}/events"


def questions_address(events_address: str) -> str:
    """The address of the socket on which the scheduler process is asked, beside that of its reports."""
    return f"{events_address.removesuffix('/events')}/questions"


def events_directory(address: str) -> Path:
    """Inverse of ``events_address``."""
    return Path(address.removeprefix("ipc://")).parent


class ReportKind(StrEnum):
    """What happened to a request in the scheduler process."""

    HELLO = "hello"
    STARTED = "started"
    ENDED = "ended"
    FREED = "freed"
    CACHE = "cache"


class Report(NamedTuple):
    """One report. ``sequence`` counts from 0 (the hello) without gaps unless reports were lost.

    ``evicted_tokens_total`` counts since the cache was built. ``aborted`` is set on FREED only.
    ``cache`` is a message of ``cache_news``: what happened to the cache before this; empty if nothing.
    CACHE reports bring nothing else but ``stats``, as FREED reports do: the retractions, then a
    RetentionStats from a cache that has one.
    """

    sequence: int
    evicted_tokens_total: int
    kind: ReportKind
    request_id: str
    at_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted: bool = False
    cache: bytes = b""
    stats: tuple[int, ...] = ()


def encode(report: Report) -> bytes:
    """A report as one message."""
    packed: bytes = msgpack.packb(report)
    return packed


def decode(message: bytes) -> Report:
    """Inverse of ``encode``; raises ValueError for anything else."""
    try:
        sequence, evicted, kind, *rest = msgpack.unpackb(message, use_list=False)
        return Report(sequence, evicted, ReportKind(kind), *rest)
    except Exception as error:
        raise ValueError(f"not a report: {error}") from None


class ResponseEnd(NamedTuple):
    """How a response ended, as the engine's front saw it: SGLang's own counts."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted: bool = False


@dataclass(slots=True)
class _Held:
    """A request between submit and Finished."""

    prompt_tokens: int
    started: bool = False
    ended: bool = False
    abort_requested: bool = False
    response: ResponseEnd | None = None
    overdue_s: float = field(default=float("inf"))


class EventLedger:
    """Turns reports into engine events: in order, each at most once, Finished exactly once.

    Reports say when the scheduler freed a request and decide when it finished. If none comes within
    ``grace_s`` after its response ended (a report was lost, or the scheduler turned the request away
    before queueing it), the response's end counts instead. All times are monotonic seconds.
    """

    def __init__(self, grace_s: float = 4.0) -> None:
        self._grace_s = grace_s
        self._held: dict[str, _Held] = {}
        self._running = 0
        self._next_sequence = 0
        self.lost_reports = 0
        self.evicted_tokens_total = 0
        self.stats: tuple[int, ...] = ()

    @property
    def running(self) -> int:
        """Requests admitted into a batch and not yet freed."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests submitted and not yet admitted."""
        return len(self._held) - self._running

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._held

    def submitted(self, request_id: str, prompt_tokens: int) -> None:
        """A request goes to the engine; ValueError if one of that id is still held."""
        if request_id in self._held:
            raise ValueError(f"request {request_id} is in the engine already")
        self._held[request_id] = _Held(prompt_tokens)

    def withdrawn(self, request_id: str) -> None:
        """The engine refused the request at its door: no events will follow."""
        self._forget(request_id)

    def abort_requested(self, request_id: str) -> None:
        """From now on an aborted end of this request is what the caller asked for."""
        if held := self._held.get(request_id):
            held.abort_requested = True

    def reported(self, report: Report) -> list[EngineEvent]:
        """Events that follow from a report; none for unknown requests and repetitions."""
        self.lost_reports += max(0, report.sequence - self._next_sequence)
        self._next_sequence = report.sequence + 1
        self.evicted_tokens_total = report.evicted_tokens_total
        self.stats = report.stats or self.stats
        held = self._held.get(report.request_id)
        if held is None:
            return []
        if report.kind is ReportKind.STARTED and not held.started:
            held.started = True
            self._running += 1
            return [
                PrefillStarted(
                    report.request_id, report.at_s, report.prompt_tokens, report.cached_tokens
                )
            ]
        if report.kind is ReportKind.ENDED and not held.ended:
            held.ended = True
            return [PrefillEnded(report.request_id, report.at_s)]
        if report.kind is ReportKind.FREED:
            counts = ResponseEnd(*report[5:9])
            return [self._finish(report.request_id, held, counts, report.at_s)]
        return []

    def response_ended(self, request_id: str, end: ResponseEnd, now_s: float) -> None:
        """The response is complete; the scheduler has ``grace_s`` to say that it freed the request."""
        if held := self._held.get(request_id):
            held.response = end
            held.overdue_s = now_s + self._grace_s

    def overdue(self, now_s: float) -> list[EngineEvent]:
        """Finished events of requests whose freeing was not reported in time."""
        late = [(rid, held) for rid, held in self._held.items() if held.overdue_s <= now_s]
        return [
            self._finish(rid, held, held.response or ResponseEnd(), now_s) for rid, held in late
        ]

    def _finish(self, request_id: str, held: _Held, end: ResponseEnd, at_s: float) -> Finished:
        outcome = Outcome.FINISHED
        if end.aborted:
            # An abort that nobody here asked for is the engine giving up on the request.
            outcome = Outcome.ABORTED if held.abort_requested else Outcome.FAILED
        self._forget(request_id)
        return Finished(
            request_id,
            at_s,
            outcome,
            end.prompt_tokens or held.prompt_tokens,
            end.cached_tokens,
            end.output_tokens,
        )

    def _forget(self, request_id: str) -> None:
        held = self._held.pop(request_id, None)
        if held is not None and held.started:
            self._running -= 1

    def check_integrity(self) -> None:
        """AssertionError if the counters disagree with what is held."""
        assert self._running == sum(held.started for held in self._held.values())
        assert 0 <= self._running <= len(self._held)
