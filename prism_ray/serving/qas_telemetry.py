"""What the QAS actor tells the telemetry store, and the embedded store that it owns by default.

The embedded server is started in the background: serving never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from prism_ray.config import ConfigError, PrismConfig
from prism_ray.dispatch import Dispatcher, ResidencyState
from prism_ray.model import Decision, Lane, ReplicaSnapshot
from prism_ray.scheduling import Scheduler
from prism_ray.serving.meters import Meters
from prism_ray.serving.ray_mirror import RayMirror
from prism_ray.serving.recent import Recent
from prism_ray.serving.warm_restart import CHECKPOINTS, YOUNG_S, WarmRestart
from prism_ray.telemetry import codec
from prism_ray.telemetry.codec import SegmentRow
from prism_ray.telemetry.embedded import EmbeddedStore
from prism_ray.telemetry.reader import StoreUnavailable, load_checkpoint
from prism_ray.telemetry.store import StoreLimits, TelemetryStore

logger = logging.getLogger(__name__)

CHECKPOINT_S = 10.0
"""How often checkpoints are made: about 20 ms with as many uses as one can have."""

RAY_STATE_S = 2.0
"""How often Ray's metrics are told gauges; Ray itself passes them on every ten seconds."""


class QasTelemetry:
    """Totals of this QAS, and the writer of its snapshots, counters and decisions."""

    def __init__(
        self, app: str, config: PrismConfig, dispatcher: Dispatcher, clock: Callable[[], float]
    ) -> None:
        self._app = app
        self._redis = config.redis
        self._limits = StoreLimits(
            top_segments=config.redis.top_segments,
            decisions_kept=config.redis.decisions_max,
            decisions_ttl_s=config.redis.decisions_ttl_s,
            snapshot_ttl_s=config.redis.snapshot_ttl_s,
            checkpoint_ttl_s=YOUNG_S,
        )
        self._embedded: EmbeddedStore | None = None
        self._store: TelemetryStore | None = None
        self._task: asyncio.Task[None] | None = None
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0
        self.predicted_cached_tokens_total = 0
        self.mispredicted_tokens_total = 0
        self.decisions_total = 0
        self.meters = Meters()
        self._clock = clock
        self._warm = WarmRestart(dispatcher, self.meters, clock)
        self._checkpoint_at_s: float | None = None
        self._recent = Recent()
        self._policy = config.scheduler.policy
        self._ray = RayMirror()
        self._ray_state_at_s = clock()

    def start(self) -> None:
        self._task = asyncio.create_task(self._open(), name="prism-telemetry")

    def decided(self, decisions: tuple[Decision, ...]) -> None:
        self.decisions_total += len(decisions)
        predicted = sum(d.predicted_cached_tokens for d in decisions)
        self.predicted_cached_tokens_total += predicted
        self.meters.add("prism_predicted_cached_tokens_total", predicted)
        self.meters.observe("prism_batch_size", len(decisions))
        for decision in decisions:
            # The rule's name without its numbers: a label is one of a few words.
            rule = decision.reason.partition(":")[0].partition(";")[0]
            self.meters.add("prism_decisions_total", 1, self._policy, rule)
            self.meters.observe("prism_queue_wait_seconds", decision.queue_s, str(decision.lane))
            if decision.lane is Lane.COLD:
                self.meters.add("prism_starvation_promotions_total", 1, self._policy)
        if self._store is not None:
            self._store.add_decisions(decisions)

    def round_took(self, seconds: float) -> None:
        self.meters.observe("prism_round_seconds", seconds)

    def prefilled(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens_total += prompt_tokens
        self.cached_tokens_total += cached_tokens
        self.meters.add("prism_prompt_tokens_total", prompt_tokens)
        self.meters.add("prism_cached_tokens_total", cached_tokens)

    def mispredicted(self, tokens: int) -> None:
        """So many cached tokens more or fewer than predicted for one request."""
        self.mispredicted_tokens_total += tokens
        self.meters.add("prism_mispredicted_cached_tokens_total", tokens)

    def non_global(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Of one request, beyond the system prefix and its tools."""
        self.meters.add("prism_non_global_prompt_tokens_total", prompt_tokens)
        self.meters.add("prism_non_global_cached_tokens_total", cached_tokens)

    def snapshot(
        self, snapshot: ReplicaSnapshot, credit_tokens: int, residency: ResidencyState
    ) -> None:
        if self._store is not None:
            self._store.put_snapshot(
                snapshot, credit_tokens=credit_tokens, residency=str(residency)
            )

    def segments(self, scheduler: Scheduler) -> None:
        """Hand over the counters of the top segments, if the policy keeps any."""
        if self._store is None:
            return
        rows = scheduler.describe(self._redis.top_segments).get("segments", [])
        self._store.put_segments(
            SegmentRow(
                id=row["segment"],
                label=row["label"],
                active=row["active"],
                queued=row["queued"],
                next=row["next"],
                priority=row["priority"],
            )
            for row in rows
        )

    def joined(self, replica: str) -> None:
        """A replica can take work: what the former QAS knew of it comes back."""
        self._warm.joined(replica)

    def checkpoint(self) -> None:
        """What a QAS after this one needs to know of the past: a look at one replica with every call,
        and all of it every ``CHECKPOINT_S``.

        Not into our own server, which ends with us, and not before the former checkpoints were read.
        """
        due_s, now_s = self._checkpoint_at_s, self._clock()
        if self._store is None or due_s is None:
            return
        self._warm.look()
        if now_s < due_s:
            return
        self._checkpoint_at_s = now_s + CHECKPOINT_S
        for name, value in self._warm.checkpoints(time.time()).items():
            self._store.put_checkpoint(name, value)

    def hand_over(self, books: Callable[[], Mapping[str, Any]]) -> None:
        """Pass on to Ray's metrics what is new and, every ``RAY_STATE_S``, what the actor's books say."""
        self._ray.pass_on(self.meters.take())
        now_s = self._clock()
        if now_s >= self._ray_state_at_s:
            self._ray_state_at_s = now_s + RAY_STATE_S
            self._ray.pass_state(books())

    def look(self, now_s: float) -> None:
        """Remember the totals from time to time, for ``recent``."""
        self._recent.look(self.meters.total, now_s)

    def recent(self, now_s: float) -> dict[str, Any]:
        """TTFT and queue wait of the last minutes (``Recent.describe``)."""
        return self._recent.describe(self.meters.total, now_s)

    def describe(self) -> dict[str, Any]:
        stats = None if self._store is None else self._store.stats
        return {
            "store_up": bool(stats and stats.up),
            "store_embedded": self._redis.url is None,
            "store_dropped": stats.dropped if stats else 0,
            "decisions_total": self.decisions_total,
            "prompt_tokens_total": self.prompt_tokens_total,
            "cached_tokens_total": self.cached_tokens_total,
            "predicted_cached_tokens_total": self.predicted_cached_tokens_total,
            "mispredicted_cached_tokens_total": self.mispredicted_tokens_total,
        }

    async def _open(self) -> None:
        try:
            url = self._redis.authenticated_url(os.environ)
        except ConfigError as error:
            logger.warning("no telemetry store: %s", error)
            return
        if url is None:
            try:
                self._embedded = await asyncio.to_thread(EmbeddedStore.start)
            except Exception as error:  # telemetry is optional, whatever keeps it from starting
                logger.warning("no embedded telemetry store: %s", error)
                return
            url = self._embedded.url
        try:
            self._store = TelemetryStore(
                url, self._app, namespace=self._redis.namespace, limits=self._limits
            )
        except ValueError as error:
            logger.warning("no telemetry store: %s", error)
            return
        self._store.start()
        if self._embedded is None:
            await self._recall(url)
            self._checkpoint_at_s = self._clock() + CHECKPOINT_S

    async def _recall(self, url: str) -> None:
        """Look for what a former QAS left; a store that does not answer says nothing of it."""
        for name in CHECKPOINTS:
            try:
                stored = await load_checkpoint(
                    url, self._app, name, namespace=self._redis.namespace
                )
            except StoreUnavailable:
                return
            except codec.UnknownVersion as error:
                self._warm.ignore(name, "unknown_version", error)
            except codec.CodecError as error:
                self._warm.ignore(name, "malformed", error)
            else:
                if stored is not None:
                    self._warm.offer(name, stored, time.time())
