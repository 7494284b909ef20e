"""Fires planned requests from one process or several, on one clock. The loops themselves are ``client``'s.

One Python process keeps some hundred requests a second; above that its own lateness grows. Several
processes take the requests in turns, start at one moment and hand their rows back in one list.
"""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from loadgen.client import ClosedLoop, OpenLoop, open_client
from loadgen.rows import PlannedRequest, RequestRow

PROCESS_RATE = 500.0
"""Requests a second that one process is asked to keep (streams of some 16 tokens; ``bench generator``)."""
_START_S = 0.2
_TELL_S = 0.25

OnDone = Callable[[int], None]


class WorkerFailed(RuntimeError):
    """A process of the generator broke; its requests have no rows."""


@dataclass(frozen=True)
class Target:
    """Where requests go. ``timeout_s`` bounds a whole request from its sending."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0


def processes_for(rate: float | None) -> int:
    """How many processes ``rate`` requests/s need; one where no rate is set, at most one a core."""
    needed = 1 if rate is None else math.ceil(rate / PROCESS_RATE)
    return max(1, min(needed, os.cpu_count() or 1))


def fire(
    requests: Sequence[PlannedRequest],
    target: Target,
    *,
    concurrency: int | None = None,
    processes: int = 1,
    on_done: OnDone = lambda count: None,
) -> list[RequestRow]:
    """Send all, open loop, or closed with ``concurrency`` clients; rows in the order of ``requests``.

    ``on_done`` hears how many more have ended. Blocks, and has an event loop of its own. ValueError
    for fewer processes than one, or more than clients; WorkerFailed if a process breaks.
    """
    named = [replace(r, id=r.id or str(i)) for i, r in enumerate(requests)]
    if processes < 1 or (concurrency is not None and processes > concurrency):
        raise ValueError(f"{processes} processes cannot be {concurrency or 'open-loop'} clients")
    if processes == 1:
        with _no_full_collections():
            return _run(_send(named, target, concurrency, None, lambda row: on_done(1)))
    return _fire_together(named, target, concurrency, processes, on_done)


def _fire_together(
    requests: Sequence[PlannedRequest],
    target: Target,
    concurrency: int | None,
    processes: int,
    on_done: OnDone,
) -> list[RequestRow]:
    order = sorted(range(len(requests)), key=lambda i: requests[i].at_s)
    shares = [order[n::processes] for n in range(processes)]
    clients = [
        None if concurrency is None else len(range(n, concurrency, processes))
        for n in range(processes)
    ]
    rows: list[RequestRow | None] = [None] * len(requests)
    with _started(len(shares)) as lines:
        for line, share, many in zip(lines, shares, clients, strict=True):
            line.send((target, [requests[i] for i in share], many))
        for line in lines:
            _hear(line)  # it is ready
        start_s = time.monotonic() + _START_S
        for line in lines:
            line.send(start_s)
        open_lines = dict(zip(lines, shares, strict=True))
        while open_lines:
            for line in cast(list[Connection], wait(list(open_lines))):
                told = _hear(line)
                if isinstance(told, int):
                    on_done(told)
                    continue
                for i, row in zip(open_lines.pop(line), told, strict=True):
                    rows[i] = row
    return [row for row in rows if row is not None]


@contextmanager
def _started(count: int) -> Iterator[list[Connection]]:
    """Processes with a line to each; none is left behind."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(count)]
    children = [context.Process(target=_work, args=(far,), daemon=True) for _, far in pairs]
    try:
        for child, (_, far) in zip(children, pairs, strict=True):
            child.start()
            far.close()
        yield [near for near, _ in pairs]
        for child in children:
            child.join()
    finally:
        for child in children:
            if child.is_alive():
                child.terminate()
                child.join()
        for near, _ in pairs:
            near.close()


def _hear(line: Connection) -> Any:
    try:
        told = line.recv()
    except (EOFError, ConnectionResetError) as error:
        raise WorkerFailed("a process of the load generator ended before its work") from error
    if isinstance(told, Exception):
        raise WorkerFailed(f"{type(told).__name__}: {told}") from told
    return told


def _work(line: Connection) -> None:
    """A child's whole life: its share, "ready", the start, counts as it goes, and its rows."""
    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            target, requests, concurrency = line.recv()
            line.send("ready")
            start_s = line.recv()
            told_s, count = start_s, 0

            def tell(row: RequestRow) -> None:
                nonlocal told_s, count
                count += 1
                if (now_s := time.monotonic()) >= told_s + _TELL_S:
                    line.send(count)
                    told_s, count = now_s, 0

            with _no_full_collections():
                rows = _run(_send(requests, target, concurrency, start_s, tell))
            line.send(count)
            line.send(rows)
        except Exception as error:
            line.send(RuntimeError(f"{type(error).__name__}: {error}"))


async def _send(
    requests: Sequence[PlannedRequest],
    target: Target,
    concurrency: int | None,
    start_s: float | None,
    on_row: Callable[[RequestRow], None],
) -> list[RequestRow]:
    async with open_client(target.base_url, api_key=target.api_key) as client:
        if concurrency is None:
            loop = OpenLoop(client, timeout_s=target.timeout_s, on_row=on_row)
            return await loop.run(requests, start_s=start_s)
        closed = ClosedLoop(client, timeout_s=target.timeout_s, on_row=on_row)
        return await closed.run(requests, concurrency, start_s=start_s)


def _run(main: Coroutine[Any, Any, list[RequestRow]]) -> list[RequestRow]:
    """asyncio.run on uvloop where there is one (it comes with Ray Serve, but not everywhere)."""
    factory = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextmanager
def _no_full_collections() -> Iterator[None]:
    """What is there at the start stays out of garbage collection: looking through a long trace takes
    tens of milliseconds, in which nothing is sent."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
