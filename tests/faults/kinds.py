"""The kinds of faults: what each does to one process of a running application, and what it may cost.

A fault says which processes it ended, so that its end can be seen. What it may cost its clients is
what docs/failures.md promises.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import ray

from tests.faults import wall_clock
from tests.faults.application import CALL_TIMEOUT_S, call_replica
from tests.faults.load import CONNECTIONS_END, INGRESS_ENDS, STREAMS_END
from tests.faults.processes import (
    CONTROLLER,
    INGRESS,
    PROXY,
    QAS,
    REPLICA,
    SCHEDULER_PROCESS,
    STORE_PROCESS,
    children_named,
    living,
    replica_name,
)
from tests.faults.replicas import real_replica_pid

Gone = Collection[int]
"""Process ids that a fault ended."""

Inject = Callable[[random.Random], Awaitable[Gone]]


@dataclass(frozen=True)
class Kind:
    """``inject`` gets a source of chance to choose its victim, and returns when the fault is over.

    ``costs``: the ends, in ``load.seen``'s words, that requests may have beside an answer.
    ``with_others``: whether it can happen at the same time as another such fault.
    """

    name: str
    inject: Inject
    costs: frozenset[str] = frozenset()
    with_others: bool = False


def _victim(kind: str, rng: random.Random, spare: Collection[int] = ()) -> tuple[str, int]:
    found = sorted((name, pid) for name, pid in living(kind).items() if pid not in spare)
    return found[rng.randrange(len(found))]


def _real() -> set[int]:
    pid = real_replica_pid()
    return set() if pid is None else {pid}


def killer(kind: str) -> Inject:
    """Ends a process of that kind without a word."""

    async def inject(rng: random.Random) -> Gone:
        _, pid = await asyncio.to_thread(_victim, kind, rng)
        os.kill(pid, signal.SIGKILL)
        return {pid}

    return inject


def stopper(kind: str, seconds: float) -> Inject:
    """Lets a process stand still for a while."""

    async def inject(rng: random.Random) -> Gone:
        _, pid = await asyncio.to_thread(_victim, kind, rng, _real())
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
        return ()

    return inject


async def crash_engine(rng: random.Random) -> Gone:
    """A simulated engine ends; its replica does not."""
    name, pid = await asyncio.to_thread(_victim, REPLICA, rng, _real())
    await call_replica(replica_name(name), "crash_engine")
    return {pid}


async def kill_real_scheduler(_: random.Random) -> Gone:
    """SGLang's scheduler process ends; nothing else is touched."""
    (pid,) = _real()
    scheduler = await asyncio.to_thread(children_named, pid, SCHEDULER_PROCESS)
    assert scheduler, "the real engine has no scheduler process"
    for process in scheduler:
        process.kill()
    return {pid}


async def kill_real_replica(_: random.Random) -> Gone:
    """The replica around the real engine ends, and its engine must."""
    (pid,) = _real()
    os.kill(pid, signal.SIGKILL)
    return {pid}


async def slow_replica(rng: random.Random) -> Gone:
    """A replica's engine runs at a tenth of its speed for a while."""
    name, _ = await asyncio.to_thread(_victim, REPLICA, rng, _real())
    await call_replica(replica_name(name), "set_speed", 0.1)
    await asyncio.sleep(8.0)
    await call_replica(replica_name(name), "set_speed", 1.0)
    return ()


async def kill_store(_: random.Random) -> Gone:
    """The embedded telemetry store ends."""
    (pid,) = (await asyncio.to_thread(living, QAS)).values()
    for process in await asyncio.to_thread(children_named, pid, STORE_PROCESS):
        process.kill()
    return ()


async def jump_clocks(rng: random.Random) -> Gone:
    """The wall clock of every process jumps by an hour, and later by two hours to the other side."""
    shift_s = rng.choice((-3600.0, 3600.0))
    for at_s in (shift_s, -shift_s):
        await shift_clocks(at_s)
        await asyncio.sleep(5.0)
    await shift_clocks(0.0)
    return ()


async def shift_clocks(shift_s: float, kinds: Collection[str] = (REPLICA, INGRESS, QAS)) -> int:
    """Let ``time.time()`` of all processes of these kinds be wrong by so much; how many there are."""
    names = {name for kind in kinds for name in await asyncio.to_thread(living, kind)}
    for name in names:
        actor = await asyncio.to_thread(ray.get_actor, name, "serve")
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await actor.__ray_call__.remote(wall_clock.shift, shift_s)
    return len(names)


KINDS: tuple[Kind, ...] = (
    Kind("replica killed", killer(REPLICA), STREAMS_END, with_others=True),
    Kind("engine crashed", crash_engine, STREAMS_END),
    Kind("ingress killed", killer(INGRESS), INGRESS_ENDS, with_others=True),
    Kind("QAS killed", killer(QAS), with_others=True),
    Kind("QAS stands still 3 s", stopper(QAS, 3.0)),
    Kind("replica stands still 4 s", stopper(REPLICA, 4.0)),
    Kind("replica stands still 12 s", stopper(REPLICA, 12.0)),
    Kind("controller killed", killer(CONTROLLER), with_others=True),
    Kind("proxy killed", killer(PROXY), CONNECTIONS_END, with_others=True),
    Kind("replica at a tenth of its speed 8 s", slow_replica),
    Kind("telemetry store killed", kill_store),
    Kind("clocks jump by an hour", jump_clocks),
    Kind("SGLang's scheduler process killed", kill_real_scheduler, STREAMS_END),
    Kind("SGLang's replica killed", kill_real_replica, STREAMS_END),
)


def kind(name: str) -> Kind:
    """The kind of that name."""
    return next(k for k in KINDS if k.name == name)
