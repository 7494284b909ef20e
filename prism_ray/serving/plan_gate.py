"""Brings plans and bodies together, so that a replica submits in the order that was planned.

Plans come from QAS on one channel, bodies from ingresses in any order. When its turn has come an
entry waits for its body for a few milliseconds, and longer while no other body is here that could go
instead; then it is voided, and its body is sent back when it arrives. How long is worth waiting
follows from how late bodies have been lately: on a slow path, voiding them sooner would only send
them round in circles. Knows no engine and no transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prism_ray.dispatch import Refusal
from prism_ray.model import DemandTable, InFlight, Plan
from prism_ray.serving.messages import DIRECT_EPOCH
from prism_ray.serving.waiting import set_within

logger = logging.getLogger(__name__)

EntryKey = tuple[str, str, int]
"""(epoch, request id, attempt)"""

VOIDED_REMEMBERED = 4096

LAG_SMOOTHING = 0.2
PATIENCE = 4.0
"""An entry waits for its body up to this many times the smoothed lag of recent bodies."""


class NotYourTurn(Exception):
    """The request may not be submitted here; ``reason`` is a Refusal's value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class GateBroken(Exception):
    """The gate lets nobody through any more: it failed by a fault of its own."""


class Turn(NamedTuple):
    """Leave to submit: call ``submitted`` once that is done or has failed.

    ``table`` is the plan's demand table for the first request of a plan to be submitted, None for
    the others.
    """

    submitted: Callable[[], None]
    table: DemandTable | None


@dataclass(slots=True)
class _PlanTable:
    """A plan's demand table, until the first of its requests has taken it along."""

    table: DemandTable | None

    def take(self) -> DemandTable | None:
        table, self.table = self.table, None
        return table


@dataclass(slots=True)
class _Entry:
    key: EntryKey
    uncached_tokens: int
    planned_s: float
    plan: _PlanTable
    body: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Future[None] | None = None
    submitted: asyncio.Event = field(default_factory=asyncio.Event)
    voided: bool = False


class PlanGate:
    """One replica's line of planned requests.

    ``owed_tokens`` says how many predicted uncached tokens the engine holds that are not prefilled;
    an entry whose turn comes while that has used up ``prefill_ahead_tokens`` is refused
    (`over_credit`): with one QAS that never happens, with two during an update it can.
    """

    def __init__(
        self,
        *,
        body_wait_s: float,
        plan_wait_s: float,
        prefill_ahead_tokens: int,
        owed_tokens: Callable[[], int],
        on_void: Callable[[EntryKey, Refusal], None],
        on_broken: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._body_wait_s = body_wait_s
        self._plan_wait_s = plan_wait_s
        self._prefill_ahead_tokens = prefill_ahead_tokens
        self._owed_tokens = owed_tokens
        self._on_void = on_void
        self._on_broken = on_broken
        self._clock = clock
        self._line: deque[_Entry] = deque()
        self._entries: dict[EntryKey, _Entry] = {}
        self._early: dict[EntryKey, asyncio.Future[_Entry]] = {}
        self._voided: OrderedDict[EntryKey, tuple[str, float]] = OrderedDict()
        self._lag_s = 0.0
        self._more = asyncio.Event()
        self._arrival = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._broken: GateBroken | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="prism-plan-gate")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add_plan(self, plan: Plan) -> None:
        """Put a plan's entries at the end of the line."""
        table = _PlanTable(plan.demand if plan.demand.rows else None)
        for item in plan.entries:
            key = (plan.epoch, item.request_id, item.attempt)
            self._append(key, item.uncached_tokens, table)

    def void(self, key: EntryKey) -> None:
        """QAS needs no submission of this entry any more (its client left)."""
        entry = self._entries.get(key)
        if entry is not None:
            self._void(entry, Refusal.CLIENT_LEFT)

    def in_line(self) -> list[InFlight]:
        """Entries not yet submitted, as a snapshot lists them."""
        return [
            InFlight(e.key[1], e.key[2], e.uncached_tokens, False) for e in self._entries.values()
        ]

    async def enter(self, key: EntryKey, uncached_tokens: int) -> Turn:
        """A body is here: wait for its turn.

        Raises NotYourTurn when the entry was voided, is over credit, or no plan names it in time;
        GateBroken when it will never come.
        """
        if self._broken is not None:
            raise self._broken
        voided = self._voided.pop(key, None)
        if voided is not None:
            reason, planned_s = voided
            self._note_lag(self._clock() - planned_s)
            raise NotYourTurn(reason)
        entry = self._entries.get(key)
        if entry is not None:
            self._note_lag(self._clock() - entry.planned_s)
        if entry is None and key[0] == DIRECT_EPOCH:
            entry = self._append(key, uncached_tokens, _PlanTable(None))
        if entry is None:
            entry = await self._wait_for_plan(key)
            self._note_lag(0.0)
        if entry.turn is None:
            entry.turn = asyncio.get_running_loop().create_future()
        entry.body.set()
        self._arrival.set()
        try:
            await entry.turn
        except asyncio.CancelledError:
            # Its client left: the credit need not wait until its turn comes, or has come in vain.
            if not entry.voided:
                self._void(entry, Refusal.CLIENT_LEFT)
            entry.submitted.set()
            raise
        return Turn(entry.submitted.set, entry.plan.take())

    async def _wait_for_plan(self, key: EntryKey) -> _Entry:
        waiter = self._early.setdefault(key, asyncio.get_running_loop().create_future())
        try:
            # Not ``wait_for``: before Python 3.12 it loses a cancellation that comes with the plan.
            async with asyncio.timeout(self._plan_wait_s):
                return await waiter
        except TimeoutError:
            if waiter.done() and not waiter.cancelled():  # at the last moment
                return waiter.result()
            raise NotYourTurn(Refusal.LATE_BODY) from None
        except asyncio.CancelledError:
            self.void(key)  # its plan may have come just now
            raise
        finally:
            self._early.pop(key, None)

    def _append(self, key: EntryKey, uncached_tokens: int, plan: _PlanTable) -> _Entry:
        entry = _Entry(key, uncached_tokens, self._clock(), plan)
        self._line.append(entry)
        self._entries[key] = entry
        waiter = self._early.get(key)
        if waiter is not None and not waiter.done():
            waiter.set_result(entry)
        self._more.set()
        return entry

    async def _run(self) -> None:
        try:
            await self._serve_line()
        except Exception as error:
            logger.exception("the plan gate failed")
            self._break(GateBroken(f"the plan gate failed: {error!r}"))

    def _break(self, broken: GateBroken) -> None:
        """Whoever waits must not wait for ever, and nobody may wait anew."""
        self._broken = broken
        turns = [entry.turn for entry in self._entries.values() if entry.turn is not None]
        waiters: list[asyncio.Future[Any]] = [*turns, *self._early.values()]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(broken)
        self._entries.clear()
        self._line.clear()
        self._on_broken(str(broken))

    async def _serve_line(self) -> None:
        while True:
            while not self._line:
                self._more.clear()
                await self._more.wait()
            entry = self._line.popleft()
            if not entry.voided:
                await self._serve(entry)

    async def _serve(self, entry: _Entry) -> None:
        if not await self._body_came(entry):
            self._void(entry, Refusal.LATE_BODY)
            return
        if entry.voided:
            return
        assert entry.turn is not None
        if self._owed_tokens() >= self._prefill_ahead_tokens:
            self._void(entry, Refusal.OVER_CREDIT)
            return
        self._entries.pop(entry.key, None)
        if not entry.turn.done():  # else its client left just now, and it is about to say so
            entry.turn.set_result(None)
            await entry.submitted.wait()

    async def _body_came(self, entry: _Entry) -> bool:
        """Wait for the body of the entry whose turn it is; True also when the entry was voided."""
        while not entry.body.is_set() and not entry.voided:
            waited_s = self._clock() - entry.planned_s
            another = any(e.body.is_set() and not e.voided for e in self._line)
            left_s = (self._patience_s() if another else self._plan_wait_s) - waited_s
            if left_s <= 0:
                return False
            self._arrival.clear()
            await set_within(self._arrival, left_s)
        return True

    def _patience_s(self) -> float:
        return min(max(self._body_wait_s, PATIENCE * self._lag_s), self._plan_wait_s)

    def _note_lag(self, lag_s: float) -> None:
        self._lag_s += LAG_SMOOTHING * (lag_s - self._lag_s)

    def _void(self, entry: _Entry, reason: Refusal) -> None:
        """The entry will not be submitted; QAS is told, and its body when it comes."""
        entry.voided = True
        self._arrival.set()
        self._on_void(entry.key, reason)
        self._entries.pop(entry.key, None)
        if entry.turn is not None:
            if not entry.turn.done():
                entry.turn.set_exception(NotYourTurn(reason))
            return
        self._voided[entry.key] = (reason, entry.planned_s)
        while len(self._voided) > VOIDED_REMEMBERED:
            self._voided.popitem(last=False)
