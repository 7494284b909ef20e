"""The environments of Serve's modes, and HAProxy's side ports on loopback."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from prism_ray.serving.serve_mode import (
    SERVE_MODES,
    haproxy_environment,
    mode_environment,
    set_environment,
)


def test_modes_differ_in_what_they_select() -> None:
    selected = {mode: tuple(sorted(mode_environment(mode).items())) for mode in SERVE_MODES}
    assert len(set(selected.values())) == len(SERVE_MODES)
    with pytest.raises(ValueError, match="haproxy"):
        mode_environment("fast")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs util-linux")
def test_haproxy_ends_with_the_process_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, noted = tmp_path / "real", tmp_path / "pid"
    real.write_text(f"#!/bin/sh\necho $$ > {noted}.new; mv {noted}.new {noted}\nexec sleep 60\n")
    real.chmod(0o755)
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(real))
    script = haproxy_environment(tmp_path)["RAY_SERVE_HAPROXY_BINARY_PATH"]
    starter = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    with subprocess.Popen([sys.executable, "-c", starter, script, "-db"]) as manager:
        wait_until(noted.exists)
        haproxy = psutil.Process(int(noted.read_text()))
        manager.kill()
    wait_until(lambda: _ended(haproxy))


def _ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_metrics_and_statistics_are_bound_to_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real"
    real.write_text('#!/bin/sh\necho "$@"\n')
    real.chmod(0o755)
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(real))
    places = haproxy_environment(tmp_path, metrics_port=9101, stats_port=8404)
    config = tmp_path / "haproxy.cfg"
    splicing = "    option splice-request\n    option splice-response\n"
    config.write_text(
        f"{splicing}    bind :9101\n  bind *:8404\n    bind *:8000\n    bind 127.0.0.1:8001\n"
    )
    command = [places["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(config), "-sf", "1"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.split() == command[1:]
    assert "splice-request" not in config.read_text(), "it would hide clients that leave"
    assert "option splice-response" in config.read_text()
    assert config.read_text().split("bind ")[1:] == [
        "127.0.0.1:9101\n  ",
        "127.0.0.1:8404\n    ",
        "*:8000\n    ",
        "127.0.0.1:8001\n",
    ]


def test_the_environment_is_refused_when_serve_has_read_its_own() -> None:
    code = (
        "import sys, types; sys.modules['ray.serve'] = types.ModuleType('ray.serve')\n"
        "from prism_ray.serving.serve_mode import set_environment\n"
        "set_environment({'A': '1'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "imported already" in done.stderr


def test_the_environment_is_set_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray.serve", raising=False)
    monkeypatch.setenv("PRISM_TEST_MODE", "0")
    set_environment({"PRISM_TEST_MODE": "1"})
    import os

    assert os.environ["PRISM_TEST_MODE"] == "1"
