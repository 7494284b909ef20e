"""The engine's process group: how a replica starts it, and how it ends when the replica does.

The engine has a process of its own, under the replica, because SGLang takes a process for itself: it
sets signal handlers (main thread only), environment variables and the event loop policy, and answers
a crash by killing its whole process tree. In the replica that would be Ray's worker. Nothing here
imports SGLang.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

HOST_MODULE = "prism_ray.engine.sglang_host"


class EngineProcess:
    """A running engine process, its children, and the socket to it.

    It leads a process group, so that one signal reaches every process of the engine, and none that
    is meant for the replica's terminal. Its guard holds the reading end of a pipe whose writing end is
    only here: when this process ends, however it ends, the pipe closes and the group is killed.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, lifeline: IO[bytes]
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        self.connection = connection
        self.pid = process.pid

    @classmethod
    def spawn(cls, environment: Mapping[str, str]) -> EngineProcess:
        """Start the process with ``environment`` as its variables; it waits for its arguments."""
        ours, theirs = socket.socketpair()
        lifeline_read, lifeline_write = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", HOST_MODULE, str(theirs.fileno()), str(lifeline_read)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), lifeline_read),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(lifeline_write)
            raise
        finally:
            theirs.close()
            os.close(lifeline_read)
        return cls(process, ours, os.fdopen(lifeline_write, "wb"))

    def wait(self, timeout_s: float) -> bool:
        """Whether the process ended within ``timeout_s``; blocks."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill what is left of the group and reap the process. Safe to repeat."""
        if self._lifeline.closed:
            return
        self._lifeline.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def die_with_parent(lifeline_fd: int, scratch: Path) -> None:
    """In the engine process: kill the whole group as soon as the lifeline closes, or this process ends.

    ``scratch``, the directory that the parent would have removed, goes with the parent.

    A guard does it, a process outside the group that is nobody's child. Ray kills a worker's own
    children with it, so this process may be gone before it could do anything, and what SGLang has just
    started under it would stay for ever. (PR_SET_PDEATHSIG would fire when the parent's *thread* that
    forked ends, and a Serve replica forks from pool threads.) Call it while there is only one thread.
    """
    if os.getpgrp() != os.getpid():
        raise RuntimeError("the engine process must lead its process group")
    group = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _guard(group, lifeline_fd, scratch)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(lifeline_fd)


def _guard(group: int, lifeline_fd: int, scratch: Path) -> None:
    """Wait until the lifeline closes or the group's leader ends; then end the group."""
    _close_all_but(lifeline_fd)  # the parent learns of the engine's end from the end of its socket
    ends = [lifeline_fd]
    with contextlib.suppress(OSError):  # a kernel without pidfds, or the leader is gone already
        ends.append(os.pidfd_open(group))
    if lifeline_fd in select.select(ends, [], [])[0]:
        shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _close_all_but(fd: int) -> None:
    """Standard streams stay, too."""
    os.closerange(3, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))


def die_with_children(pids: Iterable[int]) -> None:
    """In the engine process, on its event loop: kill the whole group as soon as one of these ends.

    An engine without its scheduler or detokenizer answers nothing. SGLang's own watchdog comes to the
    same end a few seconds later; it is what remains where the kernel has no pidfds.
    """
    loop = asyncio.get_running_loop()

    def ended(pid: int) -> None:
        logger.error("process %d of the engine ended: so does the engine", pid)
        kill_own_group()

    for pid in pids:
        with contextlib.suppress(OSError):
            loop.add_reader(os.pidfd_open(pid), ended, pid)


def kill_own_group() -> None:
    """End this process and all others of its group at once."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
