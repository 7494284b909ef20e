"""The routers in front of several of SGLang's servers, as processes; fresh for each run.

Both are programs of their own packages (``sglang-router``, ``smg``), started as their own command.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryFile

from loadgen.bench.ports import free_ports
from loadgen.compare.native import ServerFailed, running, until_healthy

SGLANG_ROUTER = "sglang-router"
ROUTERS = (SGLANG_ROUTER, "smg")
POLICY = "cache_aware"


def router_command(
    program: str, path: str, workers: Sequence[str], ports: Sequence[int]
) -> list[str]:
    """The command of a router: serves on the first port, tells its metrics on the second."""
    words = [path, "launch", "--worker-urls", *workers, "--policy", POLICY]
    words += ["--host", "127.0.0.1", "--port", str(ports[0]), "--prometheus-port", str(ports[1])]
    return words + (["--health-check-port", str(ports[2])] if program == "smg" else [])


def program_path(program: str) -> str:
    """Where a router's program is: on the PATH, or ``sglang-router`` beside this interpreter.

    Not so ``smg``: the package ``sglang-router`` has a program of that name, too. Raises ServerFailed if
    it is nowhere.
    """
    path = shutil.which(program)
    if path is None and program == SGLANG_ROUTER:
        path = shutil.which(program, path=str(Path(sys.executable).parent))
    if path is None:
        raise ServerFailed(f"{program} is not installed: pip install {program}")
    return path


@asynccontextmanager
async def router(program: str, workers: Sequence[str]) -> AsyncIterator[str]:
    """A router in front of servers; its base URL. Raises ServerFailed if it is not installed."""
    path = program_path(program)
    ports = free_ports(3)
    with TemporaryFile() as log:
        async with running(
            router_command(program, path, workers, ports), dict(os.environ), log
        ) as process:
            url = f"http://127.0.0.1:{ports[0]}"
            await until_healthy(url, process, log, "/readiness")
            yield url
