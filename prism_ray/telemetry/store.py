"""Writes telemetry to a Redis-protocol server, off the hot path. Reading is in ``reader``.

Serving never waits for the store and never fails with it: the ``put_*`` methods only note what to
write; one background task encodes it, writes it in pipelined batches and outlives outages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from redis.asyncio import Redis

from prism_ray.model import Decision, ReplicaSnapshot
from prism_ray.telemetry.buffer import SegmentTable, TelemetryBuffer
from prism_ray.telemetry.codec import DecisionRow, ReplicaRow, SegmentRow
from prism_ray.telemetry.connection import OUTAGE, close, connect, safe_url
from prism_ray.telemetry.keys import Keys
from prism_ray.telemetry.writes import StoreLimits, Write, Writer

__all__ = ["StoreLimits", "StoreStats", "TelemetryStore"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters since the store was made.

    ``dropped`` counts values that will never be written: pushed out of the full buffer, beyond the
    codec's limits, or refused by the server.
    """

    up: bool
    commands_written: int
    dropped: int
    outages: int
    buffered: int


class TelemetryStore:
    """The application's telemetry writer.

    After an outage in the middle of a batch its decisions are written again: at least once, told
    apart by (request id, attempt, epoch). ``put_*`` and ``add_decisions`` may be called before
    ``start``; they never block and never raise.
    """

    def __init__(
        self,
        url: str,
        app: str,
        *,
        namespace: str = "prism",
        limits: StoreLimits | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """ValueError for a name that cannot be part of a key, and for what is no URL."""
        self._url = url
        self._address = safe_url(url)
        self._limits = limits or StoreLimits()
        self._writer = Writer(Keys(app, namespace), self._limits)
        self._wall_clock = wall_clock
        self._buffer = TelemetryBuffer(
            max_decisions=self._limits.buffered_decisions,
            max_replicas=self._limits.max_replicas,
            max_checkpoints=self._limits.max_checkpoints,
        )
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._up = False
        self._in_outage = False
        self._refusal_said = False
        self._written = self._refused = self._unfit = self._outages = 0

    @property
    def up(self) -> bool:
        """Whether the last exchange with the server succeeded (``prism_telemetry_store_up``)."""
        return self._up

    @property
    def stats(self) -> StoreStats:
        dropped = self._buffer.dropped + self._refused + self._unfit
        return StoreStats(self._up, self._written, dropped, self._outages, len(self._buffer))

    def put_snapshot(
        self, snapshot: ReplicaSnapshot, *, credit_tokens: int = 0, residency: str = "exact"
    ) -> None:
        """Note a replica's newest state."""
        self._buffer.put_replica(ReplicaRow(snapshot, credit_tokens, residency, self._wall_clock()))

    def put_segments(self, rows: Iterable[SegmentRow]) -> None:
        """Note the counters of the top segments, highest priority first; the rest is cut off."""
        top = tuple(islice(rows, self._limits.top_segments))
        self._buffer.put_segments(SegmentTable(top, self._wall_clock()))

    def add_decisions(self, decisions: Iterable[Decision]) -> None:
        """Append to the stream of decisions; beyond the buffer the oldest are dropped."""
        now = self._wall_clock()
        self._buffer.add_decisions(DecisionRow(d, now) for d in decisions)

    def put_checkpoint(self, name: str, value: Mapping[str, Any]) -> None:
        """Note state for a warm restart: scalars, lists and string-keyed maps within the codec's
        limits. The mapping must not change afterwards."""
        self._buffer.put_checkpoint(name, value)

    def start(self) -> None:
        """Begin to write, on the running event loop. A second call does nothing."""
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="telemetry-store")

    async def close(self, timeout_s: float = 2.0) -> None:
        """Stop, after writing what is buffered if the server takes it within ``timeout_s``."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping.set()
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)

    async def _run(self) -> None:
        client = connect(self._url, self._limits.io_timeout_s)
        try:
            await self._write_until_stopped(client)
            with contextlib.suppress(*OUTAGE):
                while len(self._buffer) and not _cancelled():
                    await self._flush(client)
        finally:
            await close(client)

    async def _write_until_stopped(self, client: Redis) -> None:
        failures, heartbeat_at_s = 0, float("-inf")
        while not (self._stopping.is_set() or _cancelled()):
            try:
                if len(self._buffer) or time.monotonic() >= heartbeat_at_s:
                    await self._flush(client)
                    heartbeat_at_s = time.monotonic() + self._limits.heartbeat_s
                failures = 0
                if not self._buffer.decisions_waiting:
                    await self._pause(self._limits.flush_interval_s)
            except Exception as error:  # whatever it is, telemetry must outlive it
                self._went_down(error)
                await self._pause(self._backoff_s(failures))
                failures += 1

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not into the stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _backoff_s(self, failures: int) -> float:
        """Doubling, capped, with jitter so that many writers do not come back at one moment."""
        delay = self._limits.backoff_base_s * 2.0 ** min(failures, 16)
        return min(delay, self._limits.backoff_cap_s) * random.uniform(0.5, 1.0)

    async def _flush(self, client: Redis) -> None:
        """Write one batch and a sign of life. Raises an outage, what was not written put back.

        The sign of life goes last: it tells a server that takes no writes (full, read-only, no
        permission) from a few values that are refused, and it is younger than all it speaks for.
        """
        batch = self._buffer.take(self._limits.batch_decisions)
        try:
            writes, unfit = self._writer.writes(batch)
            pipeline = client.pipeline(transaction=False)
            for write in writes:
                for command in write.commands:
                    pipeline.execute_command(*command)
            pipeline.execute_command(*self._writer.heartbeat(self._wall_clock()))
            replies = await pipeline.execute(raise_on_error=False)
        except BaseException:  # also when cancelled: nothing taken may be lost on the way
            self._buffer.give_back(batch)
            raise
        self._unfit += unfit
        self._account(writes, replies)

    def _account(self, writes: Sequence[Write], replies: Sequence[object]) -> None:
        """Books of one exchange: values of a server that takes no writes are put back, else dropped."""
        refused, at, error = [], 0, None
        for write in writes:
            mine = replies[at : at + len(write.commands)]
            at += len(mine)
            errors = [reply for reply in mine if isinstance(reply, Exception)]
            self._written += len(mine) - len(errors)
            if errors:
                refused.append(write)
                error = error or errors[0]
        sign_of_life = replies[at]
        if isinstance(sign_of_life, Exception):
            for write in reversed(refused):
                self._buffer.give_back(write.part)
            raise sign_of_life
        self._written += 1
        self._refused += len(refused)
        self._came_up()
        if refused and not self._refusal_said:
            self._refusal_said = True
            logger.warning("telemetry store refuses some writes: %s", error)

    def _came_up(self) -> None:
        if self._in_outage:
            logger.info("telemetry store %s takes writes again", self._address)
        self._up, self._in_outage = True, False

    def _went_down(self, error: BaseException) -> None:
        if not self._in_outage:
            self._outages += 1
            logger.warning(
                "telemetry store %s takes no writes (%s: %s); serving goes on, "
                "retrying in the background",
                self._address,
                type(error).__name__,
                error,
            )
        self._up, self._in_outage = False, True


def _cancelled() -> bool:
    """Whether this task was told to go: redis-py loses a cancellation that arrives in a pipeline."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
