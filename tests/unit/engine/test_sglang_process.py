"""Whoever of an engine's processes and their owner ends first: the others follow, at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from prism_ray.engine import sglang_process
from prism_ray.engine.sglang_process import EngineProcess

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def engine(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProcess]:
    monkeypatch.setattr(sglang_process, "HOST_MODULE", "tests.unit.engine.stand_in_host")
    variables = {"SCRATCH": str(scratch), "PYTHONPATH": str(REPOSITORY)}
    engine = EngineProcess.spawn({**os.environ, **variables})
    yield engine
    engine.kill()
    engine.connection.close()


def family(engine: EngineProcess) -> list[psutil.Process]:
    """The engine's process and its child, which is there as soon as this is known."""
    engine.connection.settimeout(30)
    return [psutil.Process(engine.pid), psutil.Process(int(engine.connection.recv(100)))]


def gone(process: psutil.Process, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_killed_leader_takes_the_rest_of_its_group_along(
    engine: EngineProcess, scratch: Path
) -> None:
    leader, child = family(engine)
    leader.kill()
    assert gone(child)
    assert engine.connection.recv(1) == b"", "the owner sees it at its socket"
    assert scratch.exists(), "it is the owner's, who is there"


def test_the_end_of_the_owner_ends_all_of_it_and_its_directory(
    engine: EngineProcess, scratch: Path
) -> None:
    leader, child = family(engine)
    engine._lifeline.close()  # as the kernel does when a process ends
    assert gone(child)
    assert gone(leader)
    assert not scratch.exists()


def test_owner_and_leader_may_end_at_the_same_time(engine: EngineProcess) -> None:
    """Ray kills a worker's own children with it, and nothing else."""
    leader, child = family(engine)
    leader.kill()
    engine._lifeline.close()
    assert gone(child)
