"""The server side of ``bench path``: one Ray, one Serve, the compared applications; a process of its own.

Says on standard output when all are ready, answers questions from standard input, ends with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.bench.handles import driver_handle, replica_handle
from loadgen.bench.ports import free_ports

ANSWER = "stack: "
"""What a line for the parent process begins with."""

START_TIMEOUT_S = 180

SETTLED_S = 4.0
"""The proxies' processes must have been the same for this long."""


class Stack(NamedTuple):
    """A running stack: its HTTP port, the Ray actors' roles by process id, and questions to it.

    ``processes``: pid → (arm, part); parts are ingress, actor, replica, and proxy for the arm
    ``shared``. ``ask("books")``: what our application's tables hold.
    """

    port: int
    processes: dict[int, tuple[str, str]]
    ask: Callable[[str], dict[str, Any]]


@contextmanager
def running(mode: str, arms: tuple[str, ...]) -> Iterator[Stack]:
    """Start the arms in a Serve mode; yield when all answer."""
    command = [sys.executable, "-m", "loadgen.bench.path_stack", mode, *arms]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    said, asked = process.stdout, process.stdin

    def answer() -> dict[str, Any]:
        for line in said:
            if line.startswith(ANSWER):
                found: dict[str, Any] = json.loads(line[len(ANSWER) :])
                return found
        raise RuntimeError(f"the {mode} stack ended: exit code {process.wait()}")

    def ask(question: str) -> dict[str, Any]:
        print(question, file=asked, flush=True)
        return answer()

    try:
        told = answer()
        roles = {int(pid): (arm, part) for pid, arm, part in told["processes"]}
        yield Stack(told["port"], roles, ask)
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def main(mode: str, arms: list[str]) -> None:
    """Run the stack (module's own process: Serve reads its mode when it is imported)."""
    from prism_ray.serving.serve_mode import (
        haproxy_environment,
        mode_environment,
        set_environment,
    )

    with tempfile.TemporaryDirectory(prefix="prism-bench-") as scratch:
        port, *side = free_ports(4)
        environment = mode_environment(mode)
        if mode == "haproxy":
            environment |= haproxy_environment(
                Path(scratch), metrics_port=side[0], stats_port=side[1], fallback_port=side[2]
            )
        set_environment(environment)
        _serve(port, arms)


def _serve(port: int, arms: list[str]) -> None:
    import ray
    from ray import serve

    from loadgen.bench.path_apps import APPS

    ray.init(num_cpus=8, include_dashboard=False, logging_level="warning", log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        for arm in arms:
            serve.run(APPS[arm](), name=arm, route_prefix=f"/{arm}")
        _wait_until_ready(port, arms)
        processes = list(_processes())
        _wait_until_settled([pid for pid, arm, _ in processes if arm == "shared"])
        print(ANSWER + json.dumps({"port": port, "processes": processes}), flush=True)
        for question in sys.stdin:
            assert question.strip() == "books"
            print(ANSWER + json.dumps(_books()), flush=True)
        serve.shutdown()
    finally:
        ray.shutdown()


def _books() -> dict[str, Any]:
    """What our application holds: the QAS actor's recounted books and state, and the others' own."""
    import ray
    from ray._private.state import actors

    time.sleep(SETTLED_S)
    qas = next(
        ray.get_actor(actor["Name"], namespace="serve")
        for actor in actors().values()
        if actor["ActorClassName"] == "QasActor" and actor["State"] == "ALIVE"
    )
    ingress, replica = driver_handle("Ingress", "prism"), replica_handle("prism")
    state = ray.get(qas.state.remote(0))
    return {
        "qas": ray.get(qas.check.remote()),
        "qas_tables": ray.get(qas.tables.remote()),
        "ingress_tables": ingress.tables.remote().result(timeout_s=30),
        "window": {name: state["window"][name] for name in ("queued", "active")},
        "seats": state["replicas"],
        "replica": replica.books.remote().result(timeout_s=30),
    }


def _wait_until_ready(port: int, arms: list[str]) -> None:
    import httpx

    from loadgen.bench.path_apps import CHAT

    body = {"messages": [{"role": "user", "content": "Ready?"}], "max_tokens": 1}
    deadline = time.monotonic() + START_TIMEOUT_S
    for arm in arms:
        while True:
            try:
                answer = httpx.post(f"http://127.0.0.1:{port}/{arm}{CHAT}", json=body, timeout=10.0)
                if answer.status_code == 200:
                    break
                why: Any = f"{answer.status_code} {answer.text[:200]}"
            except httpx.HTTPError as error:
                why = repr(error)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{arm} does not answer: {why}")
            time.sleep(0.2)


def _wait_until_settled(proxies: list[int]) -> None:
    """HAProxy is started anew for every change of the applications; the old one closes connections."""
    from loadgen.bench.processes import families

    seen, since_s = families(proxies), time.monotonic()
    deadline = since_s + START_TIMEOUT_S
    while time.monotonic() - since_s < SETTLED_S and time.monotonic() < deadline:
        time.sleep(0.25)
        now = families(proxies)
        if now != seen:
            seen, since_s = now, time.monotonic()


def _processes() -> Iterator[tuple[int, str, str]]:
    from ray._private.state import actors

    for actor in actors().values():
        if actor["State"] != "ALIVE":
            continue
        pid, name, kind = int(actor["Pid"]), str(actor["Name"]), str(actor["ActorClassName"])
        found = _role(name, kind)
        if found is not None:
            yield pid, *found


def _role(name: str, kind: str) -> tuple[str, str] | None:
    """Arm and part of a Ray actor; None for the control plane."""
    if kind in ("ProxyActor", "HAProxyManager"):
        return "shared", "proxy"
    for arm in ("prism", "bare", "floor"):
        if f"{arm}#" in name or f"{arm}::" in name:
            part = "actor"
            if "SERVE_REPLICA" in name:
                part = "ingress" if "Ingress" in name else "replica"
            return arm, part
    return None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
