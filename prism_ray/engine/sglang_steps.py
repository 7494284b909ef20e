"""A recorder of steps in SGLang's scheduler process: what every batch held, when it ran, what waited.

For measurements and for checking the step model against the real engine; off unless the engine's
environment names a file. It uses SGLang's own hook registry and changes nothing: an error in here is
logged once and recording ends.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

STEPS_FILE_VARIABLE = "PRISM_STEPS_FILE"
"""Environment variable of the engine's processes: the file that takes the records, one a line."""

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_REQUEST = "sglang.srt.managers.schedule_batch.Req"
_TOUCH = "sglang.srt.mem_cache.common.touch_waiting_prefix"


class BatchEntry(NamedTuple):
    """A request's part in a batch: its KV reaches from ``start`` to ``end`` tokens by it."""

    request_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A batch that ran; times are monotonic seconds.

    The pass that formed it first renewed the recency of ``touched``, then looked up ``matched``
    (admitted or not), each in this order, made room, and left ``waiting`` in the queue. The cache
    then held ``resident_tokens``.
    """

    prefill: bool
    begin_s: float
    end_s: float
    entries: tuple[BatchEntry, ...]
    touched: tuple[str, ...]
    matched: tuple[str, ...]
    waiting: tuple[str, ...]
    resident_tokens: int = 0

    @property
    def new_tokens(self) -> int:
        return sum(e.end - e.start for e in self.entries) if self.prefill else 0

    @property
    def decode_requests(self) -> int:
        return 0 if self.prefill else len(self.entries)

    @property
    def context_tokens(self) -> int:
        """KV that a decode step reads."""
        return 0 if self.prefill else sum(e.end for e in self.entries)


class QueueRecord(NamedTuple):
    """A request came to the scheduler's queue (again: after a retraction), or was aborted."""

    kind: str
    at_s: float
    request_id: str


Recorded = StepRecord | QueueRecord
QUEUED, RETRACTED, ABORTED = "queued", "retracted", "aborted"


@dataclass(slots=True)
class StepRecorder:
    """Hooks of the scheduler, writing as it goes. ``write`` takes one line of JSON."""

    write: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    _touched: list[str] = field(default_factory=list)
    _matched: list[str] = field(default_factory=list)
    _begun: deque[dict[str, Any]] = field(default_factory=deque)
    _broken: bool = False

    def install(self) -> None:
        """Register with SGLang's hook registry; SGLang applies hooks once plugins are loaded."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for target, hook, kind in (
            (f"{_SCHEDULER}.run_batch", self.batch_begins, HookType.BEFORE),
            (f"{_SCHEDULER}.process_batch_result", self.batch_ended, HookType.AFTER),
            (f"{_SCHEDULER}._add_request_to_queue", self.queued, HookType.BEFORE),
            (f"{_SCHEDULER}.abort_request", self.aborted, HookType.BEFORE),
            (f"{_REQUEST}.init_next_round_input", self.matched, HookType.AFTER),
            (_TOUCH, self.touched, HookType.BEFORE),
        ):
            HookRegistry.register(target, hook, kind)

    def batch_begins(self, scheduler: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Before ``run_batch``: who is in the batch, and which of their tokens."""
        self._guard(self._begin, scheduler, batch)

    def batch_ended(self, _result: Any, _scheduler: Any, _batch: Any, *_: Any, **__: Any) -> None:
        """After ``process_batch_result``: what the batch computed is in the cache."""
        self._guard(self._end)

    def queued(
        self, _scheduler: Any, req: Any, is_retracted: bool = False, *_: Any, **__: Any
    ) -> None:
        """Before a request is appended to the waiting queue."""
        self._guard(self._queue, RETRACTED if is_retracted else QUEUED, req)

    def aborted(self, _scheduler: Any, recv_req: Any, *_: Any, **__: Any) -> None:
        """Before an abort message is worked off."""
        self._guard(self._queue, ABORTED, recv_req)

    def touched(self, req: Any, *_: Any, **__: Any) -> None:
        """Before the cached prefix of a waiting request is made recent."""
        self._guard(lambda: self._touched.append(req.rid))

    def matched(self, _result: Any, req: Any, tree_cache: Any = None, *_: Any, **__: Any) -> None:
        """After a waiting request was looked up in the cache, admitted or not."""
        if tree_cache is not None:
            self._guard(lambda: self._matched.append(req.rid))

    def _queue(self, kind: str, req: Any) -> None:
        self._line({"kind": kind, "at_s": self.clock(), "id": req.rid})

    def _begin(self, scheduler: Any, batch: Any) -> None:
        prefill = bool(batch.forward_mode.is_extend())
        self._begun.append(
            {
                "kind": "prefill" if prefill else "decode",
                "begin_s": self.clock(),
                "entries": [_entry(req, prefill) for req in batch.reqs],
                "touched": self._touched,
                "matched": self._matched,
                "waiting": [req.rid for req in scheduler.waiting_queue],
                "resident": _resident(scheduler.tree_cache),
            }
        )
        self._touched, self._matched = [], []

    def _end(self) -> None:
        self._line({**self._begun.popleft(), "end_s": self.clock()})

    def _line(self, record: dict[str, Any]) -> None:
        self.write(json.dumps(record, separators=(",", ":")) + "\n")

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        if self._broken:
            return
        try:
            work(*args)
        except Exception:
            self._broken = True
            logger.exception("the step recorder failed; nothing more is recorded")


def _entry(req: Any, prefill: bool) -> tuple[str, int, int]:
    if prefill:
        return req.rid, int(req.prefix_len), int(req.extend_end)
    # The token that was sampled last has no KV yet: this step computes it.
    end = len(req.origin_input_ids) + len(req.output_ids)
    return req.rid, end - 1, end


def _resident(tree_cache: Any) -> int:
    return int(tree_cache.evictable_size() + tree_cache.protected_size())


def install_from_environment() -> bool:
    """Record into the file that the environment names; False if it names none."""
    path = os.environ.get(STEPS_FILE_VARIABLE)
    if not path:
        return False
    # Every process of an engine loads plugins; only the scheduler's ever writes a line.
    StepRecorder(open(path, "a", buffering=1).write).install()  # noqa: SIM115 - lives with the process
    return True


def read_steps(path: Path) -> Iterator[Recorded]:
    """The records of a file, in order. Raises ValueError for a line that is none."""
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield _recorded(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is no step record: {error!r}") from None


def _recorded(row: dict[str, Any]) -> Recorded:
    if row["kind"] in (QUEUED, RETRACTED, ABORTED):
        return QueueRecord(row["kind"], row["at_s"], row["id"])
    return StepRecord(
        {"prefill": True, "decode": False}[row["kind"]],
        row["begin_s"],
        row["end_s"],
        tuple(BatchEntry(*entry) for entry in row["entries"]),
        tuple(row["touched"]),
        tuple(row["matched"]),
        tuple(row["waiting"]),
        row["resident"],
    )
