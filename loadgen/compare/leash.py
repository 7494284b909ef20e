"""Runs a command in a process group that ends when its parent does, however that ends.

Run as a file by ``native``, with a pipe's reading end and the command: the parent holds the other end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(lifeline_fd: int, command: list[str]) -> int:
    """The command's exit status; kills the whole group as soon as the lifeline closes."""
    child = subprocess.Popen(command)

    def watch() -> None:
        while os.read(lifeline_fd, 1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
