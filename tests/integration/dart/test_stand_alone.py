"""SGLang's own server with DART and no prism_ray around it, asked by the example client."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from prism_ray.engine.cpu.environment import cpu_engine_args, cpu_environment

REPOSITORY = Path(__file__).parents[3]

pytestmark = pytest.mark.real_engine


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **cpu_environment(inherited={"PYTHONPATH": paths})}


def option(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, str(value)]


@pytest.fixture(scope="module")
def server(random_tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    arguments = {
        **cpu_engine_args(),
        "model_path": random_tiny,
        "host": "127.0.0.1",
        "port": port,
        "radix_cache_backend": "dart",
        "enable_cache_report": True,
        "max_total_tokens": 2000,
        "context_length": 1024,
        "skip_server_warmup": True,
        "log_level": "warning",
    }
    flags = [part for name, value in arguments.items() for part in option(name, value)]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *flags],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(360):
        if process.poll() is not None:
            pytest.fail(f"the server ended: {log.read_text()[-3000:]}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail(f"the server is not ready: {log.read_text()[-3000:]}")


def test_the_example_client_finds_the_wanted_document_cached_at_the_end(
    server: str, random_tiny: Path
) -> None:
    run = subprocess.run(
        [
            sys.executable,
            str(REPOSITORY / "examples" / "dart_hints.py"),
            *("--url", server, "--tokenizer", str(random_tiny)),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    counts = [int(found) for found in re.findall(r": (\d+) tokens cached", run.stdout)]
    assert len(counts) == 11, run.stdout
    # All documents together are larger than the pool; only the wanted one is still there.
    assert counts[10] > 200
    assert max(counts[:10]) < 10
