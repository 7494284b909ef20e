"""Stands where the engine's process would be: it has a guard and a child, and does nothing else.

python -m tests.unit.engine.stand_in_host CONNECTION_FD LIFELINE_FD
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from prism_ray.engine.sglang_process import die_with_parent

if __name__ == "__main__":
    connection_fd, lifeline_fd = map(int, sys.argv[1:])
    die_with_parent(lifeline_fd, Path(os.environ["SCRATCH"]))
    child = subprocess.Popen(["sleep", "600"])
    socket.socket(fileno=connection_fd).sendall(b"%d\n" % child.pid)
    signal.pause()
