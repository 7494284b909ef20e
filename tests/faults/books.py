"""The server's own counts of requests, each life of a process by itself, and what is amiss with them.

Clients say what they saw, ingresses count how each request ended, and QAS adds the counts of all
ingresses up: three books of the same requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import ray
from ray.exceptions import RayError

from loadgen.rows import Outcome, RequestRow
from prism_ray.serving.meters import Counts, Meters
from tests.faults.processes import INGRESS, QAS, living

LOOK_S = 0.5
CALL_TIMEOUT_S = 10.0

REQUESTS = "prism_requests_total"

STREAM_ERRORS = {"internal_error": "500", "no_replica": "503"}
"""What an ingress counts for a stream that ends with an event of this code."""

Life = tuple[str, int]
"""An actor's name and process: one life of an ingress or of QAS."""


@dataclass
class Look:
    """What a process had counted when it was asked: ended requests by outcome."""

    at_s: float
    ended: Counter[str]


@dataclass
class Books:
    """``async with``: looks at what each ingress and each QAS has counted, until the end.

    Of a life that ended only the last look is known. Times are of the monotonic clock.
    """

    ingresses: dict[Life, Look] = field(default_factory=dict)
    qas: dict[Life, Look] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._looking

    async def _look_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask all that live; one that does not answer is asked again with the next look."""
        asked = []
        for kind, lives, read in (
            (INGRESS, self.ingresses, _counted_by_ingress),
            (QAS, self.qas, _counted_by_qas),
        ):
            for life in (await asyncio.to_thread(living, kind)).items():
                asked.append(_look_at(life, lives, read))
        await asyncio.gather(*asked)

    async def until_told(self, timeout_s: float = 15.0) -> None:
        """Until QAS has what living ingresses counted, if it can have all of it; no matter if not."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            await self.look()
            if len(self.qas) == 1 and sum_of(self.ingresses) == sum_of(self.qas):
                return
            await asyncio.sleep(LOOK_S)


def sum_of(lives: dict[Life, Look]) -> Counter[str]:
    """Ended requests by outcome, of all lives."""
    total: Counter[str] = Counter()
    for look in lives.values():
        total += look.ended
    return total


async def last_looks(lives: dict[Life, Look], kind: str) -> list[Look]:
    """The last looks at those of a kind (``INGRESS``, ``QAS``) that live no more."""
    here = (await asyncio.to_thread(living, kind)).items()
    return [look for life, look in lives.items() if life not in here]


async def _look_at(life: Life, lives: dict[Life, Look], read: Any) -> None:
    at_s = time.monotonic()
    with contextlib.suppress(RayError, ValueError, TimeoutError):
        actor = await asyncio.to_thread(ray.get_actor, life[0], "serve")
        async with asyncio.timeout(CALL_TIMEOUT_S):
            pid, ended = await actor.__ray_call__.remote(read)
        if pid == life[1]:
            lives[life] = Look(at_s, Counter(ended))


def _counted_by_ingress(actor: Any) -> tuple[int, dict[str, int]]:
    return _counted(actor._replica_impl._user_callable_wrapper._callable._meters._meters)


def _counted_by_qas(actor: Any) -> tuple[int, dict[str, int]]:
    return _counted(actor._telemetry.meters)


def _counted(meters: Meters) -> tuple[int, dict[str, int]]:
    counts = Counts()
    counts.add(meters.total)
    counts.add(meters._new)
    ended: Counter[str] = Counter()
    for (name, labels), amount in counts.counters.items():
        if name == REQUESTS:
            ended[labels[1]] += int(amount)
    return os.getpid(), dict(ended)


# -- comparing -----------------------------------------------------------------------------------


def counted_as(row: RequestRow) -> str | None:
    """The outcome that an ingress must have counted for a request; None where its end does not say.

    A client that left, or lost its connection, does not know what its ingress made of that, or whether
    an ingress ever had the request.
    """
    if row.outcome is Outcome.ANSWERED:
        return "ok"
    if row.outcome is Outcome.REFUSED and row.error_code is not None:
        return str(row.status)
    if row.outcome is Outcome.STREAM_ERROR:
        return STREAM_ERRORS.get(row.error_code or "")
    return None


def had(row: RequestRow) -> bool:
    """Whether an ingress certainly had the request: it has sent something of an answer."""
    return counted_as(row) is None and row.status is not None and row.status < 400


def differences(
    rows: Iterable[RequestRow], probes: Counter[str], counted: Counter[str], blind: int
) -> list[str]:
    """Where clients and ingresses disagree on how requests ended; empty if nowhere.

    ``probes``: the ends of requests that are not among ``rows``, by what they must have been counted as;
    "" for those whose end does not say. ``blind``: so many may have ended at an ingress between the
    last look at it and its death.
    """
    rows = list(rows)
    said = Counter(counted_as(row) or "" for row in rows) + probes
    unknown = said.pop("", 0)
    amiss = [
        f"{end}: clients say {said[end]}, and {unknown} may be; ingresses counted {counted[end]}"
        for end in sorted(said | counted)
        if not said[end] - blind <= counted[end] <= said[end] + unknown
    ]
    # Those that left or were cut off after an answer had begun have an end at their ingress, too.
    least, most = said.total() + sum(map(had, rows)) - blind, said.total() + unknown
    if not least <= counted.total() <= most:
        amiss.append(f"{least} to {most} ended in all; ingresses counted {counted.total()}")
    return amiss


def untold(counted: Counter[str], told: Counter[str], blind: int) -> list[str]:
    """Where QAS has other counts than ingresses handed to it; empty if nowhere.

    ``blind``: so many may have ended shortly before a process died that should have counted them.
    """
    return [
        f"{end}: ingresses counted {counted[end]}, QAS {told[end]}"
        for end in sorted(counted | told)
        if not counted[end] - blind <= told[end] <= counted[end] + blind
    ]


def ended_near(rows: Iterable[RequestRow], start_s: float, looks: Sequence[Look]) -> int:
    """How many requests ended when a process died after one of these last looks; a few more, if any.

    ``start_s``: when the rows' times begin. A request of the application's own may be among them.
    """
    times = [start_s + row.ended_s for row in rows if row.ended_s is not None]
    near = [t for t in times if any(-2.0 <= t - look.at_s <= 5.0 for look in looks)]
    return len(near) + len(looks)
