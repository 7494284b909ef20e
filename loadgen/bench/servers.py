"""Real HTTP servers for ``bench server``, each a process of its own: SGLang's, its router, ours.

All serve the same random-weight model on a CPU with the same arguments. Nothing is measured here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from loadgen.bench.ports import free_ports
from loadgen.compare.native import ServerFailed
from loadgen.compare.router import SGLANG_ROUTER, program_path, router_command
from prism_ray.engine.cpu.environment import cpu_engine_args, cpu_environment

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 40.0
POOL_TOKENS = 20_000
CONTEXT_TOKENS = 4096

LIMITS: Mapping[str, Any] = {
    "context_length": CONTEXT_TOKENS,
    "max_total_tokens": POOL_TOKENS,
    "chunked_prefill_size": 1024,
    "max_running_requests": 16,
}
"""SGLang's ServerArgs that both servers' engines get, beside those of an engine on a CPU."""


class Server(NamedTuple):
    """A server that answers: its port and the process whose family it is."""

    port: int
    pid: int


@contextmanager
def sglang_server(model: Path) -> Iterator[Server]:
    """SGLang's own HTTP server, nothing of ours but what lets it run on a CPU. Raises ServerFailed."""
    (port,) = free_ports(1)
    arguments = {
        **cpu_engine_args(),
        **LIMITS,
        "model_path": model,
        "host": "127.0.0.1",
        "port": port,
        "enable_cache_report": True,
        "log_level": "warning",
    }
    command = [sys.executable, "-m", "sglang.launch_server", *_flags(arguments)]
    with _running(command, {**os.environ, **cpu_environment()}, port) as server:
        yield server


def router_is_installed() -> bool:
    """Whether SGLang's router can be started here (``pip install sglang-router``)."""
    try:
        return bool(program_path(SGLANG_ROUTER))
    except ServerFailed:
        return False


@contextmanager
def sglang_router(workers: Sequence[Server]) -> Iterator[Server]:
    """SGLang's router with its ``cache_aware`` policy before running servers. Raises ServerFailed."""
    ports = free_ports(2)
    urls = [f"http://127.0.0.1:{worker.port}" for worker in workers]
    command = router_command(SGLANG_ROUTER, program_path(SGLANG_ROUTER), urls, ports)
    with _running(command, dict(os.environ), ports[0]) as server:
        yield server


@contextmanager
def prism_server(model: Path, policy: str = "qas") -> Iterator[Server]:
    """This application as ``prism-ray serve`` starts it, behind HAProxy. Raises ServerFailed."""
    from prism_ray.serving.serve_mode import haproxy_environment

    port, *side = free_ports(4)
    with tempfile.TemporaryDirectory(
        prefix="pr-", dir="/tmp"
    ) as scratch:  # short: sockets are in it
        config = Path(scratch, "config.yaml")
        config.write_text(yaml.safe_dump(_config(model, policy)))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        environment |= haproxy_environment(
            Path(scratch), metrics_port=side[0], stats_port=side[1], fallback_port=side[2]
        )
        environment |= {"RAY_TMPDIR": scratch, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [str(Path(sys.executable).with_name("prism-ray")), "serve", str(config)]
        with _running([*command, "--port", str(port)], environment, port) as server:
            yield server


def _config(model: Path, policy: str) -> dict[str, Any]:
    limits = {k: v for k, v in LIMITS.items() if k != "max_running_requests"}
    return {
        "model": {"name": "bench", "path": str(model)},
        "engine": {"kind": "sglang", "device": "cpu", "args": limits},
        "replicas": {
            "count": 1,
            "max_running": LIMITS["max_running_requests"],
            "num_cpus": 1,
            "num_gpus": 0,
        },
        "ingress": {"count": 1, "num_cpus": 0.25},
        "scheduler": {"policy": policy},
        "retention": {"policy": "dart"},
        "placement": {"policy": "single"},
    }


def _flags(arguments: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] if value is True else [flag, str(value)]
    return flags


@contextmanager
def _running(command: list[str], environment: dict[str, str], port: int) -> Iterator[Server]:
    with tempfile.TemporaryFile(mode="w+b") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait_until_ready(process, port, log)
            yield Server(port, process.pid)
        finally:
            _end(process)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Any) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    body = {"model": "bench", "messages": [{"role": "user", "content": "Ready?"}], "max_tokens": 1}
    why: object = "no answer"
    while process.poll() is None and time.monotonic() < deadline:
        try:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            answer = httpx.post(url, json=body, timeout=30.0)
            if answer.status_code == 200:
                return
            why = f"{answer.status_code} {answer.text[:200]}"
        except httpx.HTTPError as error:
            why = repr(error)
        time.sleep(0.25)
    log.seek(0)
    said = log.read()[-3000:].decode(errors="replace")
    raise ServerFailed(f"{process.args!r} does not answer ({why}); its log ends with\n{said}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
