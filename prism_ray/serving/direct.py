"""Direct dispatch: how requests reach replicas while no QAS can be used. Decides only; sends nothing.

Traffic goes on, by least load and a few at a time: what a replica has no credit for stays here, where
it still can go back into the window when QAS answers again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from prism_ray.model import Decision, Lane, Order
from prism_ray.serving.membership import Membership
from prism_ray.serving.messages import DIRECT_EPOCH

SLOTS = 8
"""Direct requests of one ingress on their way to an engine at a time; the others wait in line."""

FULL_PAUSE_S = 0.05
"""After a replica had no credit, the slot rests this long."""


class DirectLine:
    """One per ingress. A slot is held from ``enter`` to ``leave``: until the engine has the request.

    ``turn``: whose turn it is among replicas of equal load; ingresses should begin at different ones.
    """

    def __init__(self, membership: Membership, turn: int = 0, slots: int = SLOTS) -> None:
        self._membership = membership
        self._turn = turn
        self._slots = asyncio.Semaphore(slots)

    async def enter(self) -> None:
        """Wait for a slot, first come, first served."""
        await self._slots.acquire()

    def leave(self) -> None:
        self._slots.release()

    def decide(
        self, request_id: str, attempt: int, order: Order, arrived_s: float, load: Counter[str]
    ) -> Decision | None:
        """To the replica with the fewest of this ingress's requests, in turn among those that have as few.

        None while there is no replica.
        """
        replicas = sorted(self._membership.replicas)
        if not replicas:
            return None
        first = self._turn % len(replicas)
        self._turn += 1
        return Decision(
            request_id=request_id,
            attempt=attempt,
            epoch=DIRECT_EPOCH,
            replica=min(replicas[first:] + replicas[:first], key=load.__getitem__),
            plan_version=0,
            position=0,
            order=order,
            lane=Lane.COLD,
            queue_s=time.monotonic() - arrived_s,
            predicted_cached_tokens=0,
            reason="qas_unavailable",
        )
