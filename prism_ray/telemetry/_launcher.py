"""Runs one server process and ends it, with its directory, when the owner is gone.

Started as a script by ``embedded`` (``python -I -S _launcher.py OWNER_PID DIRECTORY COMMAND...``),
standard library only. The owner is gone when its end of our standard input closes, which the kernel
does also after a SIGKILL, or when we have another parent. A process of its own, because a
parent-death signal set by the owner itself would follow whichever of its threads started the
server; this one has a single thread, so the server may safely be tied to it.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_TICK_S = 0.5
_GRACE_S = 2.0


def _tie_to_launcher(libc: ctypes.CDLL | None, launcher_pid: int) -> None:
    """In the forked child: be killed with the launcher, also if that died just now."""
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        os._exit(1)


def _owner_is_gone(owner_pid: int) -> bool:
    """Wait a tick; a readable standard input means end of file, since owners never write."""
    readable, _, _ = select.select([0], [], [], _TICK_S)
    return bool(readable) or os.getppid() != owner_pid


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(owner_pid: int, directory: str, command: list[str]) -> int:
    """Exit status of the server, 0 when the owner left first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    launcher_pid = os.getpid()
    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: _tie_to_launcher(libc, launcher_pid),
        )
        try:
            while server.poll() is None:
                if _owner_is_gone(owner_pid):
                    return 0
            return server.returncode
        finally:
            _stop(server)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
