"""What the telemetry writer still has to write, bounded. Knows no bytes, no keys, no server.

Snapshots, segment counters and checkpoints are absolute: of several only the last is kept.
Decisions are a stream: beyond the bound the oldest are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prism_ray.telemetry.codec import DecisionRow, ReplicaRow, SegmentRow


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Counters of the top segments, highest priority first, and the wall time of taking."""

    rows: tuple[SegmentRow, ...]
    at_unix_s: float


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written next; taken out of the buffer until it is given back."""

    replicas: dict[str, ReplicaRow] = field(default_factory=dict)
    segments: SegmentTable | None = None
    checkpoints: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    decisions: tuple[DecisionRow, ...] = ()


class TelemetryBuffer:
    """Bounded; ``dropped`` counts what was pushed out or not taken in. Nothing here raises."""

    def __init__(self, *, max_decisions: int, max_replicas: int, max_checkpoints: int) -> None:
        self._max_decisions = max_decisions
        self._max_replicas = max_replicas
        self._max_checkpoints = max_checkpoints
        self._replicas: dict[str, ReplicaRow] = {}
        self._segments: SegmentTable | None = None
        self._checkpoints: dict[str, Mapping[str, Any]] = {}
        self._decisions: deque[DecisionRow] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        absolute = len(self._replicas) + len(self._checkpoints) + (self._segments is not None)
        return absolute + len(self._decisions)

    @property
    def decisions_waiting(self) -> bool:
        return bool(self._decisions)

    def put_replica(self, row: ReplicaRow) -> None:
        name = row.snapshot.replica
        if name in self._replicas or len(self._replicas) < self._max_replicas:
            self._replicas[name] = row
        else:
            self.dropped += 1

    def put_segments(self, table: SegmentTable) -> None:
        self._segments = table

    def put_checkpoint(self, name: str, value: Mapping[str, Any]) -> None:
        if name in self._checkpoints or len(self._checkpoints) < self._max_checkpoints:
            self._checkpoints[name] = value
        else:
            self.dropped += 1

    def add_decisions(self, rows: Iterable[DecisionRow]) -> None:
        self._decisions.extend(rows)
        self._trim()

    def take(self, max_decisions: int) -> Batch:
        """Everything absolute and the oldest ``max_decisions`` decisions; they leave the buffer."""
        replicas, self._replicas = self._replicas, {}
        segments, self._segments = self._segments, None
        checkpoints, self._checkpoints = self._checkpoints, {}
        count = min(len(self._decisions), max_decisions)
        decisions = tuple(self._decisions.popleft() for _ in range(count))
        return Batch(replicas, segments, checkpoints, decisions)

    def give_back(self, batch: Batch) -> None:
        """Undo ``take``; what came in meanwhile is newer and wins."""
        self._replicas = {**batch.replicas, **self._replicas}
        self._segments = self._segments or batch.segments
        self._checkpoints = {**batch.checkpoints, **self._checkpoints}
        self._decisions.extendleft(reversed(batch.decisions))
        self._trim()

    def _trim(self) -> None:
        while len(self._decisions) > self._max_decisions:
            self._decisions.popleft()
            self.dropped += 1
