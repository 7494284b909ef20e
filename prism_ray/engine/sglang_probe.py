"""The probe in SGLang's scheduler process: turns calls on the cache into reports and sends them.

What the cache holds is kept by a ``CacheLedger``, whose news ride along with the reports. Knows
SGLang's ``Req`` by attribute only and imports nothing of SGLang. An error in here is counted and
logged once, and never reaches the scheduler.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol

from prism_ray import cache_news
from prism_ray.cache_news import CacheNews
from prism_ray.dart import NodeKind
from prism_ray.dart.anchors import AnchorMark, PathKey
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.engine.sglang_events import (
    EVENTS_ADDRESS_VARIABLE,
    Report,
    ReportKind,
    encode,
    questions_address,
)

logger = logging.getLogger(__name__)

P = ParamSpec("P")

WAITING_REPORTS_MAX = 100_000
"""Reports that may wait for a parent that does not read; beyond it they are lost, and show as a gap."""

BEAT_S = 1.0
"""After so long without news of the cache a beat shows whether the last of them arrived."""

LINGER_S = 0.1
"""News of the cache wait so long for a report to ride along with."""


class Channel(Protocol):
    """Where encoded reports go."""

    def send(self, message: bytes) -> None:
        """Never blocks, never raises for a slow reader."""


class ReportChannel:
    """A ZeroMQ PUSH socket to the replica; its own thread does the waiting."""

    def __init__(self, address: str) -> None:
        import zmq

        self._again = zmq.Again
        self._no_wait = zmq.NOBLOCK
        self._context = zmq.Context(1)
        self._questions_address = questions_address(address)
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set(zmq.SNDHWM, WAITING_REPORTS_MAX)
        self._socket.set(zmq.LINGER, 0)
        self._socket.connect(address)

    @classmethod
    def from_environment(cls) -> ReportChannel | None:
        """The channel that the replica named for this engine; None outside of a replica."""
        address = os.environ.get(EVENTS_ADDRESS_VARIABLE)
        return cls(address) if address else None

    def send(self, message: bytes) -> None:
        try:
            self._socket.send(message, self._no_wait)
        except self._again:
            return

    def when_asked(self, ask: Callable[[], None]) -> None:
        """Call ``ask`` for every question of the replica, on a thread that does nothing else."""
        import zmq

        socket = self._context.socket(zmq.PULL)
        socket.set(zmq.LINGER, 0)
        socket.connect(self._questions_address)

        def listen() -> None:
            while True:
                socket.recv()
                ask()

        threading.Thread(target=listen, name="prism-questions", daemon=True).start()


def _guarded(
    method: Callable[Concatenate[Probe, P], None],
) -> Callable[Concatenate[Probe, P], None]:
    @functools.wraps(method)
    def guarded(self: Probe, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            self.errors += 1
            if self.errors == 1:
                logger.exception("the event probe failed; further failures are only counted")

    return guarded  # type: ignore[return-value]


class _Seen:
    """How far an admitted request has come."""

    __slots__ = ("ended", "req")

    def __init__(self, req: Any) -> None:
        self.req = req
        self.ended = False


class Probe:
    """Reports each request's admission, end of prefill and freeing, once each.

    A request that the scheduler only admits to abort it (a grammar that does not compile) reports
    nothing but its freeing. A retraction is not reported: the request keeps running for the replica.
    ``ledger`` keeps what the cache holds; without one nothing is said of it. ``stats`` are the cache's
    own counts.
    """

    def __init__(
        self,
        channel: Channel,
        clock: Callable[[], float] = time.monotonic,
        *,
        ledger: CacheLedger | None = None,
        stats: Callable[[], tuple[int, ...]] = tuple,
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._ledger = ledger
        self._stats = stats
        self._told_at_s = clock()
        self._sequence = 0
        self._evicted_tokens = 0
        self._retractions = 0
        self._last_matched: Any = None
        self._admitted: dict[str, _Seen] = {}
        self.errors = 0
        self._report(ReportKind.HELLO, "")

    @_guarded
    def matched(self, req: Any) -> None:
        """The scheduler looked up a request's prefix; it may do so again before it admits it."""
        self._last_matched = req

    @_guarded
    def admitted(self, request_id: str) -> None:
        """The request whose prefix was matched last is in the batch that is being formed."""
        req, self._last_matched = self._last_matched, None
        if request_id in self._admitted or req is None or req.rid != request_id:
            return
        self._admitted[request_id] = _Seen(req)
        if not _doomed(req):
            self._report(
                ReportKind.STARTED, request_id, len(req.origin_input_ids), int(req.prefix_len)
            )

    @_guarded
    def inserted(self, req: Any, up_to: int) -> None:
        """The cache holds the request's first ``up_to`` tokens."""
        seen = self._admitted.get(req.rid)
        if seen is None or seen.ended or _doomed(req) or up_to < len(req.origin_input_ids):
            return
        seen.ended = True
        self._report(ReportKind.ENDED, req.rid)

    @_guarded
    def released(self, req: Any) -> None:
        """The request's row is freed: it is over, or retracted and will be admitted again."""
        if req.finished():
            self._free(req.rid, req)
        else:
            self._retractions += 1

    @_guarded
    def dropped(self, request_id: str) -> None:
        """The scheduler gives a request up; unless it still holds a row that is the end of it."""
        seen = self._admitted.get(request_id)
        if seen is None or not seen.req.kv.holds_kv:
            self._free(request_id, seen and seen.req, aborted=True)

    @_guarded
    def evicted(self, tokens: int) -> None:
        """The cache dropped this many tokens to make room."""
        self._evicted_tokens += tokens

    @_guarded
    def polled(self) -> None:
        """The scheduler looks at the cache's size, as it does in every pass and while it idles."""
        ledger = self._ledger
        if ledger is None:
            return
        quiet_s = self._clock() - self._told_at_s
        if ledger.snapshot_wanted or (quiet_s >= LINGER_S and ledger.has_news):
            self._report(ReportKind.CACHE, "")
        elif quiet_s >= BEAT_S:
            self._report(ReportKind.CACHE, "", news=[ledger.beat()])

    def want_snapshot(self) -> None:
        """Name everything cached as soon as the scheduler comes by. Any thread may say so."""
        if self._ledger is not None:
            self._ledger.snapshot_wanted = True

    def _free(self, request_id: str, req: Any, aborted: bool = False) -> None:
        self._admitted.pop(request_id, None)
        if req is None:
            self._report(ReportKind.FREED, request_id, aborted=True)
            return
        self._report(
            ReportKind.FREED,
            request_id,
            len(req.origin_input_ids),
            int(req.cached_tokens),
            len(req.output_ids),
            aborted or _is_abort(req.finished_reason),
        )

    def _report(
        self,
        kind: ReportKind,
        request_id: str,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        output_tokens: int = 0,
        aborted: bool = False,
        news: list[CacheNews] | None = None,
    ) -> None:
        """Send a report with the cache's news; of several messages all but the last go before it."""
        now_s = self._clock()
        if news is None and self._ledger is not None and self._ledger.has_news:
            news = self._ledger.take()
        last = b""
        if news:
            self._told_at_s = now_s
            *first, last = map(cache_news.encode, news)
            for message in first:
                self._send(ReportKind.CACHE, "", now_s, cache=message)
        counts = (prompt_tokens, cached_tokens, output_tokens, aborted)
        self._send(kind, request_id, now_s, *counts, cache=last)

    def _send(
        self,
        kind: ReportKind,
        request_id: str,
        at_s: float,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        output_tokens: int = 0,
        aborted: bool = False,
        *,
        cache: bytes = b"",
    ) -> None:
        report = Report(
            self._sequence,
            self._evicted_tokens,
            kind,
            request_id,
            at_s,
            prompt_tokens,
            cached_tokens,
            output_tokens,
            aborted,
            cache,
            self._counts() if kind in (ReportKind.FREED, ReportKind.CACHE) else (),
        )
        self._sequence += 1
        self._channel.send(encode(report))

    def _counts(self) -> tuple[int, ...]:
        return (self._retractions, *self._stats())


class GuardedObserver:
    """A ledger as the cache's observer: an error in it costs a snapshot, never the scheduler."""

    def __init__(self, ledger: CacheLedger) -> None:
        self._ledger = ledger
        self.errors = 0

    def inserted(self, marks: Sequence[AnchorMark], resident_tokens: int) -> None:
        """See CacheObserver."""
        try:
            self._ledger.inserted(marks, resident_tokens)
        except Exception:
            self._failed()

    def evicted(self, path_key: PathKey | None, kind: NodeKind, start: int, end: int) -> None:
        """See CacheObserver."""
        try:
            self._ledger.evicted(path_key, kind, start, end)
        except Exception:
            self._failed()

    def flushed(self) -> None:
        """See CacheObserver."""
        self._ledger.flushed()

    def _failed(self) -> None:
        self._ledger.snapshot_wanted = True
        self.errors += 1
        if self.errors == 1:
            logger.exception("the ledger of the cache failed; further failures are only counted")


def _is_abort(reason: Any) -> bool:
    return reason is not None and reason.to_json().get("type") == "abort"


def _doomed(req: Any) -> bool:
    return _is_abort(req.to_finish) or _is_abort(req.finished_reason)
