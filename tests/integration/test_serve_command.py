"""``prism-ray serve``, which ``make serve`` runs: answers behind HAProxy, on this machine only."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

pytestmark = [
    pytest.mark.serve,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="HAProxy comes with Ray on Linux"),
]

COMMAND = (Path(sys.prefix) / "bin" / "prism-ray", "serve")
SERVE_RUN = (Path(sys.prefix) / "bin" / "serve", "run", "prism_ray.app")
READY_TIMEOUT_S = 180
STOP_TIMEOUT_S = 150


@dataclass
class Server:
    """A running command, the ports that were given to it, and its private directory."""

    process: subprocess.Popen[bytes]
    ports: dict[str, int]
    directory: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    def left_over(self) -> list[psutil.Process]:
        """Processes of its Ray session, which name the directory, but for the command itself."""
        return [
            process
            for process in psutil.process_iter(["pid", "cmdline"])
            if any(str(self.directory) in word for word in process.info["cmdline"] or ())
        ]


def free_ports(names: tuple[str, ...]) -> dict[str, int]:
    with contextlib.ExitStack() as stack:
        sockets = {name: stack.enter_context(socket.socket()) for name in names}
        for each in sockets.values():
            each.bind(("127.0.0.1", 0))
        return {name: int(each.getsockname()[1]) for name, each in sockets.items()}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))  # short: Ray puts sockets below it
    ports = free_ports(("http", "metrics", "stats", "fallback"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {
        "RAY_TMPDIR": str(directory),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports["metrics"]),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports["stats"]),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports["fallback"]),
    }
    log_path = directory / "log.txt"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "simulated", "--port", str(ports["http"])],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(process, ports, directory)
    try:
        wait_ready(server)
        yield server
    except BaseException:
        print(log_path.read_text(errors="replace")[-8000:], file=sys.stderr)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for each in server.left_over():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        shutil.rmtree(directory, ignore_errors=True)


def wait_ready(server: Server) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        assert server.process.poll() is None, "the command ended"
        assert time.monotonic() < deadline, "not ready in time"
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{server.url}/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.5)


def listening(ports: set[int]) -> set[tuple[str, int]]:
    return {
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports
    }


WRONG_STARTS = {
    "no such preset": ([*COMMAND, "no-such"], "simulated"),
    "no such policy": ([*COMMAND, "{config}"], "scheduler.policy: expected one of"),
    "a port that is taken": ([*COMMAND, "simulated", "--port", "{port}"], "cannot listen on"),
    "no such preset, by serve run": (
        [*SERVE_RUN, "config=no-such"],
        "simulated",
    ),
    "no such argument, by serve run": (
        [*SERVE_RUN, "cofnig=simulated"],
        "cofnig: expected one of the keys app, config",
    ),
}


@pytest.mark.parametrize("start", WRONG_STARTS.values(), ids=WRONG_STARTS.keys())
def test_a_wrong_start_is_one_clear_error_before_anything_starts(start, tmp_path):
    words, expected = start
    config = tmp_path / "wrong.yaml"
    config.write_text("extends: simulated\nscheduler: {policy: qaz}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [str(word).format(config=config, port=port) for word in words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3, done.stderr


@pytest.mark.skipif(find_spec("sglang") is None, reason="without SGLang that is the error")
def test_without_arguments_and_the_models_files_it_names_the_command_that_gets_them(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"PRISM_MODELS_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(SERVE_RUN, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "prism-ray fetch-model smollm2" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_answers_behind_haproxy(server):
    body = {"model": "simulated", "messages": [{"role": "user", "content": "Hello"}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]
    metrics = httpx.get(f"http://127.0.0.1:{server.ports['metrics']}/metrics", timeout=10)
    assert "haproxy_" in metrics.text


def test_http_metrics_and_statistics_are_on_loopback(server):
    ours = {server.ports[name] for name in ("http", "metrics", "stats")}
    found = listening(ours)
    assert {port for _, port in found} == ours
    assert {ip for ip, _ in found} == {"127.0.0.1"}


def test_ingresses_are_on_loopback_too(server):
    """In this mode each ingress has a port of its own, from 30000 on."""
    workers = {
        each.pid
        for each in psutil.Process(server.process.pid).children(recursive=True)
        if "ServeReplica" in " ".join(each.cmdline())
    }
    found = [
        connection.laddr.ip
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.pid in workers
        and 30_000 <= connection.laddr.port <= 31_000
    ]
    assert found
    assert set(found) == {"127.0.0.1"}


def test_an_interrupt_ends_it_and_everything_it_started(server):
    """Last, since nothing serves after it."""
    os.kill(server.process.pid, signal.SIGINT)
    assert server.process.wait(STOP_TIMEOUT_S) == 0
    deadline = time.monotonic() + 60
    while (left := server.left_over()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left == []
    assert listening(set(server.ports.values())) == set()
