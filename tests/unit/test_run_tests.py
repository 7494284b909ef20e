"""The second try of ``make test``: who gets one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SERVING = "tests/integration/serving/test_order.py::test_a"


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("run_tests")


@pytest.mark.parametrize(
    ("failed", "another"),
    [
        ([SERVING], True),
        ([SERVING, "tests/chaos/test_chaos.py::test_b"], True),
        ([SERVING, "tests/unit/qas/test_lanes.py::test_c"], False),
        ([f"{SERVING}{n}" for n in range(6)], False),
        (["tests/integration/serving/test_order.py"], False),
        ([], False),
    ],
)
def test_few_failures_among_real_processes_get_a_second_try(
    tool: ModuleType, failed: list[str], another: bool
) -> None:
    assert tool.deserve_another(failed) is another


@pytest.mark.parametrize(
    ("body", "code", "runs"),
    [
        ("def test_a(): pass", 0, 1),
        ("def test_a(tries): assert tries > 1", 0, 2),
        ("def test_a(tries): assert tries > 2", 1, 2),
        ("import nothing_of_this_name", 1, 1),
    ],
)
def test_the_second_try_starts_afresh_and_decides(
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    code: int,
    runs: int,
) -> None:
    room = tmp_path / "tests" / "integration"
    room.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (room / "test_one.py").write_text(body + "\n")
    (tmp_path / "conftest.py").write_text(
        "import os, pathlib, pytest\n"
        "counter = pathlib.Path(__file__).with_name('runs')\n"
        "if 'PYTEST_XDIST_WORKER' not in os.environ:\n"
        "    counter.write_text(counter.read_text() + '.' if counter.exists() else '.')\n"
        "@pytest.fixture(scope='module')\n"
        "def tries(): return len(counter.read_text())\n"
    )
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # this test may run in one itself
    monkeypatch.setattr(tool, "REPOSITORY", tmp_path)
    monkeypatch.setattr(tool, "LAST_FAILED", tmp_path / ".pytest_cache/v/cache/lastfailed")
    assert tool.main(["-q"]) == code
    assert len((tmp_path / "runs").read_text()) == runs
