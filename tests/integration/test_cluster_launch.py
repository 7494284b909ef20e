"""The commands of ``cluster/onprem.yaml`` start a Ray cluster that serves: here on one machine.

The commands run as the file has them, in a home directory of the test's own, with only addresses and
ports exchanged, so that head and worker share a machine with whatever else runs on it. Redis runs with
``cluster/redis.conf``, for Ray's tables and for the telemetry.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis
import yaml

from prism_ray.serving.serve_mode import find_haproxy, haproxy_environment
from prism_ray.telemetry.embedded import server_binary

pytestmark = [
    pytest.mark.serve,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="HAProxy comes with Ray on Linux"),
]

ROOT = Path(__file__).resolve().parents[2]
ONPREM = yaml.safe_load((ROOT / "cluster" / "onprem.yaml").read_text())
READY_TIMEOUT_S = 150
NODE_STARTS = 3
STOP_TIMEOUT_S = 5


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on; held together, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def one_command(key: str) -> str:
    """The start command under a key of the file; ``ray stop`` before it would stop other clusters."""
    stop, start = ONPREM[key]
    assert stop.endswith("/ray stop")
    return start


class Cluster:
    """Redis, a head and a worker on 127.0.0.1, each a process group that the test started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        names = ("gcs", "dashboard", "head_agent", "worker_agent", "redis", "http")
        more = ("metrics", "stats", "fallback", "client")
        self.port = dict(zip((*names, *more), free_ports(len(names) + len(more)), strict=True))
        self.password = secrets.token_hex(16)
        self.token = secrets.token_hex(32)
        self.groups: list[subprocess.Popen[bytes]] = []
        self._lay_out_home()

    def _lay_out_home(self) -> None:
        """What ``ray up`` would have put on each machine: the environment and the mounted files."""
        (self.home / "prism").symlink_to(Path(sys.prefix))
        (self.home / "haproxy").mkdir()
        port = self.port
        variables = {
            "PRISM_REDIS_PASSWORD": self.password,
            "RAY_AUTH_TOKEN": self.token,
            "RAY_REDIS_ADDRESS": f"127.0.0.1:{port['redis']}",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # others may take the CPUs
            **haproxy_environment(
                self.home / "haproxy",
                metrics_port=port["metrics"],
                stats_port=port["stats"],
                fallback_port=port["fallback"],
            ),
        }
        lines = [f"export {name}='{value}'\n" for name, value in variables.items()]
        (self.home / "prism.env").write_text("".join(lines))
        config = yaml.safe_load((ROOT / "configs" / "serve-simulated.yaml").read_text())
        config["applications"][0]["args"]["config"]["redis"] = {
            "url": f"redis://127.0.0.1:{port['redis']}/1",
            "password_env": "PRISM_REDIS_PASSWORD",
        }
        self.lay_out_application(config)

    def lay_out_application(self, config: dict[str, Any]) -> None:
        config["http_options"]["port"] = self.port["http"]
        (self.home / "serve.yaml").write_text(yaml.safe_dump(config))

    def shell(self, command: str, **more: Any) -> subprocess.Popen[bytes]:
        """Run a command as a login on one of the machines would; its group is ours to stop."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        environment |= {"HOME": str(self.home), "RAY_HEAD_IP": "127.0.0.1"}
        log = (self.home / f"log-{len(self.groups)}.txt").open("wb")
        with log:
            process = subprocess.Popen(
                ["bash", "-c", command],
                env=environment,
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **more,
            )
        self.groups.append(process)
        return process

    def start_redis(self) -> None:
        settings = (ROOT / "cluster" / "redis.conf").read_text()
        for ours, theirs in (
            ("bind * -::*", "bind 127.0.0.1"),
            ("port 6379", f"port {self.port['redis']}"),
            ("dir /data", f"dir {self.home}"),
        ):
            assert ours in settings
            settings = settings.replace(ours, theirs)
        process = self.shell(f"exec {server_binary()} -", stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(f"{settings}\nrequirepass {self.password}\n".encode())
        process.stdin.close()

    def start_ray(self) -> None:
        """Head and worker by the file's commands; ``--block`` keeps each one's processes together."""
        port = self.port
        head = one_command("head_start_ray_commands")
        head = exchanged(head, "--port=6379", f"--port={port['gcs']}")
        head = exchanged(head, "--node-ip-address=10.0.0.10", "--node-ip-address=127.0.0.1")
        head = exchanged(head, "--autoscaling-config=~/ray_bootstrap_config.yaml", "")
        self.start_node(
            lambda: self.dashboard("/api/version"),
            f"{head} --dashboard-port={port['dashboard']} --temp-dir={self.home}/ray"
            f" --dashboard-agent-listen-port={port['head_agent']}"
            f" --ray-client-server-port={port['client']}"
            f" --redis-password={self.password} --block",
        )
        worker = one_command("worker_start_ray_commands")
        worker = exchanged(worker, "$RAY_HEAD_IP:6379", f"$RAY_HEAD_IP:{port['gcs']}")
        self.start_node(
            lambda: len(self.nodes()) == 2,
            f"{worker} --num-cpus=8 --node-ip-address=127.0.0.1"
            f" --dashboard-agent-listen-port={port['worker_agent']} --block",
        )

    def start_node(self, started: Callable[[], Any], command: str) -> None:
        """Start a node; again if it gave up, as Ray does after 30 s where others take the CPUs."""
        for _ in range(NODE_STARTS):
            process = self.shell(command)
            wait(lambda p=process: started() or p.poll() is not None, "node")
            if process.poll() is None:
                return
            end_group(process, signal.SIGKILL)
        raise AssertionError(f"no node after {NODE_STARTS} starts of: {command}")

    def dashboard(self, path: str) -> Any:
        with contextlib.suppress(httpx.HTTPError):
            url = f"http://127.0.0.1:{self.port['dashboard']}{path}"
            headers = {"Authorization": f"Bearer {self.token}"}
            reply = httpx.get(url, headers=headers, timeout=20)
            return reply.json() if reply.status_code == 200 else None
        return None

    def nodes(self) -> list[dict[str, Any]]:
        listed = self.dashboard("/api/v0/nodes?detail=1") or {}
        nodes = ((listed.get("data") or {}).get("result") or {}).get("result") or []
        return [node for node in nodes if node["state"] == "ALIVE"]

    def deploy(self) -> None:
        """The command at the top of the file, for this cluster's dashboard."""
        line = next(
            line
            for line in (ROOT / "cluster" / "onprem.yaml").read_text().splitlines()
            if "serve deploy" in line
        )
        command = re.search(r'"(.*serve deploy.*)"', line)
        assert command is not None
        address = f"http://127.0.0.1:{self.port['dashboard']}"
        process = self.shell(f"export RAY_DASHBOARD_ADDRESS={address}; {command[1]}")
        assert process.wait(READY_TIMEOUT_S) == 0, self.logs()

    def logs(self) -> str:
        texts = [path.read_text(errors="replace")[-3000:] for path in self.home.glob("log-*.txt")]
        return "\n---\n".join(texts)

    def stop(self) -> None:
        """End what was started, last first, and nothing else: our groups, then what names our home."""
        for process in reversed(self.groups):
            end_group(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            end_group(process, signal.SIGKILL)  # the head's GCS outlives the first signal
        for pid in self.left_over():  # HAProxy has a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left_over(self) -> list[int]:
        """Processes whose command line names our own directory: Ray's daemons name their session."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            if any(str(self.home) in word for word in process.info["cmdline"] or ()):
                found.append(process.info["pid"])
        return found


def end_group(leader: subprocess.Popen[bytes], signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal_number)


def exchanged(command: str, ours: str, theirs: str) -> str:
    assert ours in command, f"{ours} is not in: {command}"
    return command.replace(ours, theirs)


def wait(done: Callable[[], Any], what: str, timeout_s: float = READY_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        find_haproxy()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    home = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))  # short: Ray puts unix sockets below it
    cluster = Cluster(home)
    try:
        cluster.start_redis()
        cluster.start_ray()
        cluster.deploy()
        wait(lambda: ready(cluster), "ready application")
        yield cluster
    except BaseException:
        print(cluster.logs(), file=sys.stderr)
        raise
    finally:
        cluster.stop()
        wait(lambda: not cluster.left_over(), "end of our processes", 30)
        shutil.rmtree(home, ignore_errors=True)


def ready(cluster: Cluster) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        url = f"http://127.0.0.1:{cluster.port['http']}/ready"
        return httpx.get(url, timeout=5).status_code == 200
    return False


def ask(cluster: Cluster, question: str) -> httpx.Response:
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 4,
    }
    url = f"http://127.0.0.1:{cluster.port['http']}/v1/chat/completions"
    return httpx.post(url, json=body, timeout=60)


def test_a_request_goes_through_the_cluster(cluster):
    answer = ask(cluster, "What is served here?")
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]
    assert answer.headers["x-prism-replica"]


def test_the_head_carries_neither_replicas_nor_ingresses_nor_qas(cluster):
    head = next(node["node_id"] for node in cluster.nodes() if node["is_head_node"])
    listed = cluster.dashboard("/api/v0/actors?detail=1&limit=1000")["data"]["result"]["result"]
    alive = [actor for actor in listed if actor["state"] == "ALIVE"]
    for ours, count in (("prism:Ingress", 1), ("prism:Replica", 2), ("QasActor", 1)):
        found = [actor for actor in alive if ours in actor["class_name"]]
        assert len(found) == count, ours
        assert head not in {actor["node_id"] for actor in found}
    (qas,) = [actor for actor in alive if actor["class_name"] == "QasActor"]
    assert qas["required_resources"] == {"prism_qas": 0.001}


def test_tables_of_ray_and_telemetry_are_in_different_databases(cluster):
    ask(cluster, "Say something for the telemetry.")

    def keys(database: int) -> list[bytes]:
        port, password = cluster.port["redis"], cluster.password
        with redis.Redis(port=port, password=password, db=database) as client:
            return list(client.scan_iter(count=1000))

    wait(lambda: any(key.startswith(b"prism:") for key in keys(1)), "telemetry", 30)
    assert any(b"RAY" in key for key in keys(0))
    assert not any(key.startswith(b"prism:") for key in keys(0))
    assert all(key.startswith(b"prism:") for key in keys(1))


def test_redis_wants_the_password_and_has_the_files_settings(cluster):
    port = cluster.port["redis"]
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with redis.Redis(port=port, password=cluster.password) as client:
        settings = client.config_get("*")
    assert settings["databases"] == "2"
    assert settings["maxmemory-policy"] == "volatile-ttl"
    assert settings["appendonly"] == "yes"


def test_the_dashboard_wants_the_token(cluster):
    url = f"http://127.0.0.1:{cluster.port['dashboard']}/api/v0/nodes"
    assert httpx.get(url, timeout=20).status_code in (401, 403)
    assert len(cluster.nodes()) == 2


def test_nothing_listens_beyond_this_machine_but_ray(cluster):
    """HTTP, dashboard, HAProxy's side ports and Redis are on loopback."""
    ports = {cluster.port[n] for n in ("http", "dashboard", "metrics", "stats", "redis")}
    listening = {
        (c.laddr.ip, c.laddr.port)
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port in ports
    }
    assert {port for _, port in listening} == ports
    assert {ip for ip, _ in listening} <= {"127.0.0.1", "::1"}


def test_the_file_for_a_gpu_is_deployed_over_it_with_a_preset_for_none(cluster):
    """Last, since it takes the place of the other: ``serve deploy configs/serve.yaml``."""
    config = yaml.safe_load((ROOT / "configs" / "serve.yaml").read_text())
    arguments = config["applications"][0]["args"]
    assert arguments == {"config": "a800-qwen3-4b"}
    arguments["config"] = "simulated"
    cluster.lay_out_application(config)
    before = applications(cluster)["prism"]
    cluster.deploy()

    def healthy() -> bool:
        now = applications(cluster)["prism"]
        replicas = now["deployments"].get("Replica", {}).get("replicas", [])
        new = now["last_deployed_time_s"] > before["last_deployed_time_s"]
        return new and now["status"] == "RUNNING" and len(replicas) == 1

    assert len(before["deployments"]["Replica"]["replicas"]) == 2
    wait(healthy, "healthy application")
    wait(lambda: ready(cluster), "ready application")
    assert ask(cluster, "What is served now?").status_code == 200


def applications(cluster: Cluster) -> dict[str, Any]:
    return (cluster.dashboard("/api/serve/applications/") or {})["applications"]
