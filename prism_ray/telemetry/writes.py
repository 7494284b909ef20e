"""Which commands write which telemetry values, each value on its own. Knows no connection.

A ``Write`` remembers what it writes, so that exactly what a server did not take can be put back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from prism_ray.telemetry import codec
from prism_ray.telemetry.buffer import Batch, SegmentTable
from prism_ray.telemetry.codec import DecisionRow, ReplicaRow
from prism_ray.telemetry.keys import STREAM_FIELD, Keys

logger = logging.getLogger(__name__)

Command = tuple[str | bytes | int | float, ...]


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of what is kept, here and on the server, and the writer's pace."""

    flush_interval_s: float = 0.2
    heartbeat_s: float = 5.0
    io_timeout_s: float = 2.0
    backoff_base_s: float = 0.2
    backoff_cap_s: float = 5.0
    batch_decisions: int = 512
    buffered_decisions: int = 4096
    max_replicas: int = 1024
    max_checkpoints: int = 16
    top_segments: int = 256
    decisions_kept: int = 10_000
    snapshot_ttl_s: float = 30.0
    segments_ttl_s: float = 60.0
    checkpoint_ttl_s: float = 3600.0
    decisions_ttl_s: float = 3600.0


class Write(NamedTuple):
    """One value: the commands that write it, and the part of the batch that it is."""

    commands: tuple[Command, ...]
    part: Batch


class Writer:
    """Encodes values and names their keys, within the limits."""

    def __init__(self, keys: Keys, limits: StoreLimits) -> None:
        self._keys = keys
        self._limits = limits

    def heartbeat(self, now_unix_s: float) -> Command:
        """The writer's sign of life."""
        value = repr(now_unix_s).encode()
        return _set(self._keys.heartbeat, value, 4 * self._limits.heartbeat_s)

    def writes(self, batch: Batch) -> tuple[list[Write], int]:
        """What writes a batch, and how many of its values the codec did not take."""
        writes: list[Write] = []
        unfit = 0
        for part, encode in self._encoders(batch):
            try:
                writes.append(Write(encode(), part))
            except (ValueError, TypeError, AttributeError) as error:
                unfit += 1
                logger.debug("telemetry value left out: %s", error)
        if batch.decisions:
            # Once for all of them, with an empty part: no value is lost where this is refused.
            writes.append(Write((self._renew_decisions(),), Batch()))
        return writes, unfit

    def _encoders(self, batch: Batch) -> Iterator[tuple[Batch, Callable[[], tuple[Command, ...]]]]:
        for name, replica in batch.replicas.items():
            yield Batch(replicas={name: replica}), partial(self._replica, replica)
        if batch.segments is not None:
            yield Batch(segments=batch.segments), partial(self._segments, batch.segments)
        for name, value in batch.checkpoints.items():
            yield Batch(checkpoints={name: value}), partial(self._checkpoint, name, value)
        for decision in batch.decisions:
            yield Batch(decisions=(decision,)), partial(self._decision, decision)

    def _replica(self, row: ReplicaRow) -> tuple[Command, ...]:
        name, ttl_s = row.snapshot.replica, self._limits.snapshot_ttl_s
        return (
            _set(self._keys.replica(name), codec.encode_replica(row), ttl_s),
            ("ZADD", self._keys.replicas, row.at_unix_s, name),
            ("ZREMRANGEBYSCORE", self._keys.replicas, "-inf", row.at_unix_s - ttl_s),
            ("PEXPIRE", self._keys.replicas, int(ttl_s * 1000)),
        )

    def _segments(self, table: SegmentTable) -> tuple[Command, ...]:
        data = codec.encode_segments(table.rows, table.at_unix_s)
        return (_set(self._keys.segments, data, self._limits.segments_ttl_s),)

    def _checkpoint(self, name: str, value: Mapping[str, Any]) -> tuple[Command, ...]:
        data = codec.encode(value)
        return (_set(self._keys.checkpoint(name), data, self._limits.checkpoint_ttl_s),)

    def _decision(self, row: DecisionRow) -> tuple[Command, ...]:
        kept = ("MAXLEN", "~", self._limits.decisions_kept)
        data = codec.encode_decision(row)
        return (("XADD", self._keys.decisions, *kept, "*", STREAM_FIELD, data),)

    def _renew_decisions(self) -> Command:
        """The stream goes when nothing has been decided for its time to live."""
        return ("PEXPIRE", self._keys.decisions, int(self._limits.decisions_ttl_s * 1000))


def _set(key: str, data: bytes, ttl_s: float) -> Command:
    return ("SET", key, data, "PX", int(ttl_s * 1000))
