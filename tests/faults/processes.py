"""The processes behind an application on this machine: who they are, and whether any outlives it.

Ray's own table of actors says who is who, so that the processes of other clusters here are never
touched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Self

import psutil
from ray._private.state import state as ray_state

REPLICA = "SERVE_REPLICA::default#Replica#"
INGRESS = "SERVE_REPLICA::default#Ingress#"
QAS = "::qas"
PROXY = "SERVE_PROXY_ACTOR"
CONTROLLER = "SERVE_CONTROLLER_ACTOR"

STORE_PROCESS = "valkey-server"
SCHEDULER_PROCESS = "sglang::sche"


def living(fragment: str) -> dict[str, int]:
    """Actors of this Ray whose name contains ``fragment``: name -> process id."""
    table = ray_state.actor_table(None, None, "ALIVE").values()
    return {a["Name"]: int(a["Pid"]) for a in table if fragment in a["Name"]}


def addresses(fragment: str) -> set[str]:
    """The nodes that such actors live on."""
    table = ray_state.actor_table(None, None, "ALIVE").values()
    return {a["Address"]["IPAddress"] for a in table if fragment in a["Name"]}


def replica_name(actor_name: str) -> str:
    """The name under which clients see the replica of an actor."""
    return actor_name.rpartition("#")[2]


def family(pids: Iterable[int]) -> set[psutil.Process]:
    """The processes and all their descendants; those that end meanwhile are left out."""
    found: set[psutil.Process] = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
    return found


def children_named(pid: int, start: str) -> list[psutil.Process]:
    """Descendants of a process whose name, or command's file, begins so."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            file = command[0].rpartition("/")[2] if command else ""
            if process.name().startswith(start) or file.startswith(start):
                found.append(process)
    return found


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Family:
    """``async with``: notes every process that an application's actors have, until the end."""

    KINDS = (REPLICA, INGRESS, QAS)

    def __init__(self) -> None:
        self._known: set[psutil.Process] = set()

    async def __aenter__(self) -> Self:
        self._noting = asyncio.create_task(self._note_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._noting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._noting

    async def _note_on(self) -> None:
        while True:
            self._known |= await asyncio.to_thread(self.now)
            await asyncio.sleep(1.0)

    def now(self) -> set[psutil.Process]:
        return family(pid for kind in self.KINDS for pid in living(kind).values())

    def orphans(self) -> list[str]:
        """Processes that are still there although the actor that they belonged to is not."""
        here = self.now()
        return [describe(p) for p in self._known if runs(p) and p not in here]


def describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return f"{process.pid} {' '.join(process.cmdline())[:80] or process.name()}"
    return f"{process.pid} (ended)"
