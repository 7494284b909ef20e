"""A replica's line as the QAS actor sees it: plans on their way, and when the replica was last heard.

The replica's end of it is ``replica_channel``. Pure but for asyncio; time comes in as an argument.
"""

from __future__ import annotations

import asyncio
from collections import deque

from prism_ray.model import Plan
from prism_ray.serving.messages import Hello, PlanDelivery, Report
from prism_ray.serving.waiting import set_within

SILENT_S = 3.0
"""A replica that neither polled nor reported for this long gets nothing new (it reports twice a second)."""

LATE_S = 0.75
"""After this long a replica is not above doubt: one report has not come, or comes late."""

GONE_S = 10.0
"""After this long its books are closed. One that is alive after all says hello again."""

VOIDED_MAX = 1024
"""Voided entries kept for a replica that does not poll. Losing one costs a wait for a late body."""


class QasChannel:
    """Plans are kept until the replica's next poll acknowledges them."""

    def __init__(self, hello: Hello, now_s: float) -> None:
        self.hello = hello
        self.plans: deque[Plan] = deque()
        self.heard_s = now_s
        self.suspected = False
        self.engine_counts: dict[str, float] = {}
        self._voided: deque[tuple[str, int]] = deque(maxlen=VOIDED_MAX)
        self._news = asyncio.Event()
        self._poll = 0
        self._sequence = 0

    # -- out ------------------------------------------------------------------------------------

    def push(self, plan: Plan) -> None:
        self.plans.append(plan)
        self._news.set()

    def void(self, request_id: str, attempt: int) -> None:
        """The replica need not submit this entry."""
        self._voided.append((request_id, attempt))
        self._news.set()

    async def deliver(self, epoch: str, read_version: int, patience_s: float) -> PlanDelivery:
        """What came after plan ``read_version``, waiting for it; a newer poll takes over from this."""
        while self.plans and self.plans[0].version <= read_version:
            self.plans.popleft()
        self._poll += 1
        poll = self._poll
        if not self.plans and not self._voided:
            self._news.clear()
            if not await set_within(self._news, patience_s):
                return PlanDelivery(epoch)
        if poll != self._poll:
            return PlanDelivery(epoch)
        voided = tuple(self._voided)
        self._voided.clear()
        return PlanDelivery(epoch, tuple(self.plans), voided)

    def close(self) -> None:
        """Let a waiting poll end."""
        self._news.set()

    # -- in -------------------------------------------------------------------------------------

    def hear(self, now_s: float) -> None:
        self.heard_s = now_s
        self.suspected = False

    def is_news(self, report: Report) -> bool:
        """False for a report that came before: its sender did not learn that it had arrived."""
        if report.sequence <= self._sequence:
            return False
        self._sequence = report.sequence
        if report.engine:
            self.engine_counts = dict(report.engine)
        return True

    def paused(self, now_s: float) -> bool:
        """Nothing new goes there: a call found it dead, or it is silent."""
        return self.suspected or now_s - self.heard_s >= SILENT_S

    def late(self, now_s: float) -> bool:
        """A report at least should have come."""
        return now_s - self.heard_s >= LATE_S

    def gone(self, now_s: float, serve_runs_it: bool) -> bool:
        return now_s - self.heard_s >= (GONE_S if serve_runs_it else SILENT_S)
