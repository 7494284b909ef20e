"""Two Ray nodes on one machine, each in a network namespace of its own; needs the rights to make one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import psutil

HEAD_ADDRESS = "10.231.77.1"
NODE_ADDRESS = "10.231.77.2"
GCS_PORT = 6379
"""Nobody else is in these namespaces, so every port is free there."""

NODE_STARTS = 3

NO_TOKENS = {"RAY_AUTH_MODE": "disabled"}
"""Said, since Ray's nodes and drivers choose differently when nobody does. Nobody else is in there."""


class NotPermitted(Exception):
    """This process may not make network namespaces; the message says why."""


class Nodes:
    """What can be done to two nodes that there are; ``head`` and ``node`` are their namespaces."""

    def __init__(self, head: str, node: str) -> None:
        self.head = head
        self.node = node

    def start_node(self) -> None:
        """The node joins, or comes back."""
        start_ray(
            self.node,
            f"--address={HEAD_ADDRESS}:{GCS_PORT}",
            f"--node-ip-address={NODE_ADDRESS}",
            "--num-cpus=1",
        )

    def kill_node(self) -> None:
        """All processes of the node end without a word."""
        kill_all(self.node)

    def cut_cable(self) -> None:
        """Nothing passes between the nodes any more, and neither is told."""
        ip("-n", self.node, "link", "set", "cable", "down")

    def mend_cable(self) -> None:
        ip("-n", self.node, "link", "set", "cable", "up")


class TwoNodes(Nodes):
    """``with TwoNodes()``: a head and a place for a node, joined by one cable, and by nothing else.

    Raises NotPermitted.
    """

    def __init__(self) -> None:
        super().__init__(f"prism-{os.getpid()}-head", f"prism-{os.getpid()}-node")
        self._scratch: str | None = None

    def __enter__(self) -> Self:
        try:
            self._lay_cable()
            self._scratch = tempfile.mkdtemp(prefix="pr-", dir="/tmp")  # short: sockets lie in it
            start_ray(
                self.head,
                "--head",
                f"--port={GCS_PORT}",
                f"--node-ip-address={HEAD_ADDRESS}",
                "--num-cpus=1",
                '--resources={"prism_qas":1}',
                "--include-dashboard=false",
                f"--temp-dir={self._scratch}",
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in (self.node, self.head):
            kill_all(name)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _lay_cable(self) -> None:
        ends = ((self.head, HEAD_ADDRESS), (self.node, NODE_ADDRESS))
        try:
            for name, _ in ends:
                ip("netns", "add", name)
            pair = ("name", "cable", "type", "veth", "peer", "name", "cable", "netns", self.node)
            ip("-n", self.head, "link", "add", *pair)
            for name, address in ends:
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except FileNotFoundError:
            raise NotPermitted("there is no `ip`") from None
        except subprocess.CalledProcessError as error:
            raise NotPermitted(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None


def run_in(namespace: str, *arguments: str, cwd: Path, timeout_s: float) -> int:
    """Run Python in a namespace; its exit code. Its output goes where ours goes."""
    command = ["ip", "netns", "exec", namespace, sys.executable, *arguments]
    environment = {**os.environ, **NO_TOKENS}
    return subprocess.run(
        command, cwd=cwd, env=environment, timeout=timeout_s, check=False
    ).returncode


def start_ray(namespace: str, *options: str) -> None:
    """Start a node there; again if it gave up, as Ray does after 30 s where others take the CPUs."""
    ray = Path(sys.executable).with_name("ray")
    command = ["ip", "netns", "exec", namespace, ray, "start", *options, "--disable-usage-stats"]
    environment = {**os.environ, **NO_TOKENS}
    for _ in range(NODE_STARTS):
        # No pipes: the daemons that it leaves would hold them open.
        with tempfile.TemporaryFile("w+") as said:
            started = subprocess.run(
                command, env=environment, stdout=said, stderr=said, check=False
            )
            if started.returncode == 0:
                return
            said.seek(0)
            text = said.read()
        kill_all(namespace)
    raise AssertionError(f"no node after {NODE_STARTS} starts: {text[-4000:]}")


def ip(*arguments: str) -> str:
    """Raises CalledProcessError, or FileNotFoundError where there is no such command."""
    command = ["ip", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kill_all(namespace: str, within_s: float = 20.0) -> None:
    """Kill the processes of a namespace, and wait until they are gone; none if it is not there."""
    deadline = time.monotonic() + within_s
    while alive := _processes(namespace):
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.1)


def _processes(namespace: str) -> list[psutil.Process]:
    try:
        pids = ip("netns", "pids", namespace).split()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return []
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
