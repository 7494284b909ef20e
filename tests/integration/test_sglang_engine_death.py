"""No process of an engine outlives the replica that owns it, and an engine that cannot start says why."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from prism_ray.engine.base import EngineDied

from .conftest import REPOSITORY
from .engine_driver import tiny_engine

pytestmark = pytest.mark.real_engine

OWNER = """
import asyncio, sys, threading
from pathlib import Path
from tests.integration.engine_driver import tiny_engine

async def own(model):
    engine = tiny_engine(Path(model))
    await engine.start()
    print(engine.scratch_directory, flush=True)
    await asyncio.Event().wait()

# As in a Serve replica: the loop that starts the engine is not on the main thread, and the pool
# thread that forked has nothing more to do.
owner = threading.Thread(target=lambda: asyncio.run(own(sys.argv[1])))
owner.start()
owner.join()
"""


@contextmanager
def owner_of_an_engine(model: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns an engine; killed at the end, if it is still there."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(model)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    try:
        yield owner
    finally:
        owner.kill()
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()


def test_killing_the_replica_kills_every_process_of_its_engine(random_tiny: Path) -> None:
    with owner_of_an_engine(random_tiny) as owner:
        assert owner.stdout is not None
        scratch = Path(next(line for line in owner.stdout if "prism-engine-" in line).strip())
        assert scratch.is_dir()
        family = psutil.Process(owner.pid).children(recursive=True)
        assert {"sglang::deto", "sglang::sche"} <= {process.name()[:12] for process in family}
    assert survivors(family, within_s=10) == []
    assert not scratch.exists()


def test_killing_the_replica_while_its_engine_starts_kills_it_too(random_tiny: Path) -> None:
    with owner_of_an_engine(random_tiny) as owner:
        deadline = time.monotonic() + 60
        while not (family := psutil.Process(owner.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2)  # deep in SGLang's imports, where no event loop looks at a socket
    assert survivors(family, within_s=10) == []


def test_killing_the_replica_with_the_host_while_its_engine_starts_kills_the_rest(
    random_tiny: Path,
) -> None:
    """Ray kills a worker's own children with it: the host, and not what SGLang has started under it."""
    with owner_of_an_engine(random_tiny) as owner:
        replica = psutil.Process(owner.pid)
        deadline = time.monotonic() + 120
        while len(family := replica.children(recursive=True)) < 4:  # host, tracker, two of SGLang's
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for process in (replica, *replica.children()):
            process.kill()
        assert survivors(family, within_s=10) == []


async def test_killing_the_host_alone_kills_every_process_of_its_engine(random_tiny: Path) -> None:
    engine = tiny_engine(random_tiny)
    await engine.start()
    assert engine.pid is not None
    host = psutil.Process(engine.pid)
    family = host.children(recursive=True)
    assert len(family) >= 2
    host.kill()
    with pytest.raises(EngineDied):
        async for _ in engine.events():
            pass
    assert await asyncio.to_thread(survivors, family, 10) == []
    await engine.stop()


def survivors(family: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that are still running after ``within_s``; returns as soon as none is."""
    deadline = time.monotonic() + within_s
    while (alive := [p for p in family if _alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_an_engine_that_cannot_start_says_why(random_tiny: Path) -> None:
    engine = tiny_engine(random_tiny, no_such_argument=1)
    with pytest.raises(EngineDied, match="no_such_argument"):
        await engine.start()
    assert not psutil.pid_exists(engine.pid)


async def test_an_engine_that_dies_while_it_starts_is_noticed(random_tiny: Path) -> None:
    engine = tiny_engine(random_tiny)
    starting = asyncio.create_task(engine.start())
    while not starting.done():
        await asyncio.sleep(0.05)
        if engine.pid is not None:
            psutil.Process(engine.pid).kill()
            break
    with pytest.raises(EngineDied, match="process ended"):
        await asyncio.wait_for(starting, 10)
