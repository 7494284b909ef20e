"""The telemetry writer through everything that a real server does to it.

Each time: whoever puts something never waits, one warning, ``up`` falls and rises again, the buffer
stays bounded, and afterwards what was buffered is there, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis

from prism_ray.model import Decision, Lane, ReplicaSnapshot
from prism_ray.telemetry.codec import SegmentRow
from prism_ray.telemetry.keys import Keys
from prism_ray.telemetry.reader import StoreUnavailable, read_state
from prism_ray.telemetry.store import StoreLimits, TelemetryStore

from .real_server import RealServer, self_signed, tls_door

QUICK = StoreLimits(
    flush_interval_s=0.02,
    heartbeat_s=0.1,
    io_timeout_s=0.3,
    backoff_base_s=0.02,
    backoff_cap_s=0.1,
    buffered_decisions=50,
)
ABSOLUTE = 2
"""What a watch puts besides decisions: one replica, one table of segments."""

KEYS = Keys("app")


def decision(number: int) -> Decision:
    return Decision(f"r{number}", 0, "e", "a", 1, 0, (), Lane.COLD, 0.0, 64, (), 0.0, "x")


def snapshot(sequence: int) -> ReplicaSnapshot:
    return ReplicaSnapshot("a", "inc", sequence, 3, 1, 500, 9000, 4000, 70, 11, 351.5, ())


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  (what is awaited sets no event)
            await asyncio.sleep(0.01)


class Watch:
    """A store that is written to, and what must hold of it all the time."""

    def __init__(self, url: str, caplog: pytest.LogCaptureFixture) -> None:
        self.store = TelemetryStore(url, "app", limits=QUICK)
        self._caplog = caplog
        self.number = 0

    def put(self, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            self.store.add_decisions([decision(self.number)])
            self.store.put_snapshot(snapshot(self.number))
            self.store.put_segments([SegmentRow("aa", "", 0, self.number, 0, 1.0)])

    async def outage(self) -> None:
        """Put on while the server takes nothing; the caller made it so."""
        await until(lambda: not self.store.up)
        slowest_s = 0.0
        for _ in range(30):
            began_s = time.thread_time()
            self.put(10)
            slowest_s = max(slowest_s, time.thread_time() - began_s)
            assert self.store.stats.buffered <= QUICK.buffered_decisions + ABSOLUTE
            kept = [int(r.decision.request_id[1:]) for r in self.store._buffer._decisions]
            assert kept == sorted(kept), "what is put back keeps its order"
            await asyncio.sleep(0.02)
        assert slowest_s < 0.2, "putting takes time"
        assert not self.store.up
        assert self.store.stats.outages == 1
        assert self.warnings == 1

    async def recovery(self, url: str) -> None:
        """The server takes writes again: what is buffered comes, the newest of what is absolute."""
        await until(lambda: self.store.up and not self.store.stats.buffered)
        self.put()
        await until(lambda: not self.store.stats.buffered)
        state = await read_state(url, "app", decisions=20)
        newest = [f"r{n}" for n in range(self.number, self.number - 20, -1)]
        assert [row.decision.request_id for row in state.decisions] == newest
        assert [row.snapshot.sequence for row in state.replicas] == [self.number]
        assert [row.queued for row in state.segments] == [self.number]
        assert self.store.stats.outages == 1
        assert self.warnings == 1

    @property
    def warnings(self) -> int:
        return sum(r.levelno >= logging.WARNING for r in self._caplog.records)


@pytest.fixture
def server() -> Iterator[RealServer]:
    with RealServer() as running:
        yield running


@contextlib.asynccontextmanager
async def watching(
    url: str, caplog: pytest.LogCaptureFixture, *, up: bool = True
) -> AsyncIterator[Watch]:
    watch = Watch(url, caplog)
    watch.store.start()
    try:
        if up:
            watch.put(3)
            await until(lambda: watch.store.up and not watch.store.stats.buffered)
        yield watch
    finally:
        await watch.store.close(timeout_s=0.5)


class TestTheServer:
    async def test_dies_and_comes_back_empty(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with watching(server.url, caplog) as watch:
            server.kill()
            await watch.outage()
            server.start()
            await watch.recovery(server.url)
            with server.client() as client:
                assert client.exists(KEYS.heartbeat)
                assert client.xlen(KEYS.decisions) == QUICK.buffered_decisions + 1

    async def test_hangs_and_goes_on(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with watching(server.url, caplog) as watch:
            server.signal(signal.SIGSTOP)
            watch.put(5)
            await watch.outage()
            server.signal(signal.SIGCONT)
            await watch.recovery(server.url)

    async def test_hangs_while_the_application_shuts_down(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with watching(server.url, caplog) as watch:
            server.signal(signal.SIGSTOP)
            watch.put(5)
            await asyncio.sleep(0.05)  # in the middle of a write
            began = time.perf_counter()
            await watch.store.close(timeout_s=0.2)
            assert time.perf_counter() - began < 1.4  # the time given, and 1 s to be cancelled
        assert watch.store._task is None

    async def test_runs_full(self, server: RealServer, caplog: pytest.LogCaptureFixture) -> None:
        """A part of what is written needs no memory and succeeds even so: it is down all the same."""
        async with watching(server.url, caplog) as watch:
            with server.client() as client:
                client.config_set("maxmemory-policy", "noeviction")
                client.config_set("maxmemory", "1")
            await watch.outage()
            assert "OutOfMemory" in caplog.text
            with server.client() as client:
                client.config_set("maxmemory", "0")
            await watch.recovery(server.url)

    async def test_becomes_a_read_only_replica_and_a_master_again(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with watching(server.url, caplog) as watch:
            with server.client() as client:
                client.replicaof("127.0.0.1", "1")  # where nobody is
            await watch.outage()
            assert "read only replica" in caplog.text
            with server.client() as client:
                client.replicaof("NO", "ONE")
            await watch.recovery(server.url)

    async def test_is_still_loading_its_data(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with server.client() as client:
            pipeline = client.pipeline(transaction=False)
            for number in range(3000):
                pipeline.set(f"old{number}", "x" * 100)
            pipeline.execute()
            client.save()
        server.kill()
        server.start(
            *("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"),
            wait=False,
        )
        await asyncio.to_thread(wait_for_loading, server)
        async with watching(server.url, caplog, up=False) as watch:
            await watch.outage()
            assert "loading" in caplog.text
            await watch.recovery(server.url)


def wait_for_loading(server: RealServer) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with server.client() as client:
                client.get("x")
        except redis.BusyLoadingError:
            return
        except redis.RedisError:
            time.sleep(0.02)
    raise AssertionError("the server is never loading")


class TestPasswordsAndPermissions:
    @pytest.mark.parametrize("credentials", ["", ":wr0ng@", "nobody:wr0ng@"])
    async def test_a_refused_password_is_an_outage_until_it_is_the_right_one(
        self, server: RealServer, caplog: pytest.LogCaptureFixture, credentials: str
    ) -> None:
        with server.client() as client:
            client.config_set("requirepass", "right")
        url = f"unix://{credentials}{server.path}"
        async with watching(url, caplog, up=False) as watch:
            await until(lambda: watch.store.stats.outages == 1)
            await watch.outage()
            assert "wr0ng" not in caplog.text
            with pytest.raises(StoreUnavailable) as caught:
                await read_state(url, "app")
            assert "wr0ng" not in str(caught.value)
            with server.client(password="right") as client:
                if credentials.startswith("nobody"):
                    client.execute_command("ACL SETUSER nobody on >wr0ng ~* +@all")
                else:
                    client.config_set("requirepass", credentials.strip(":@"))
            await watch.recovery(url)

    async def test_a_user_who_may_not_write_is_an_outage_until_allowed(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with server.client() as client:
            client.execute_command("ACL SETUSER prism on >pw ~prism:* +@all -@write")
        url = f"unix://prism:pw@{server.path}"
        async with watching(url, caplog, up=False) as watch:
            await until(lambda: watch.store.stats.outages == 1)
            await watch.outage()
            assert "no permissions" in caplog.text
            with server.client() as client:
                client.execute_command("ACL SETUSER prism +@write")
            await watch.recovery(url)

    async def test_a_user_who_may_not_write_some_of_it_writes_the_rest(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with server.client() as client:
            client.execute_command("ACL SETUSER prism on >pw ~prism:* +@all -xadd")
        url = f"unix://prism:pw@{server.path}"
        async with watching(url, caplog, up=False) as watch:
            for _ in range(20):
                watch.put()
                await until(lambda: not watch.store.stats.buffered)
            state = await read_state(url, "app")
            assert [row.snapshot.sequence for row in state.replicas] == [20]
            assert watch.store.up
            assert (watch.store.stats.outages, watch.store.stats.dropped) == (0, 20)
            assert watch.warnings == 1


class TestTheUrl:
    async def test_the_database_is_the_urls(self, server: RealServer) -> None:
        store = TelemetryStore(f"{server.url}?db=5", "app", limits=QUICK)
        store.start()
        await until(lambda: store.up)
        await store.close()
        with server.client() as client:
            assert client.keys("*") == []
            assert client.info("keyspace").keys() == {"db5"}

    async def test_a_database_that_is_none_is_an_outage(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with watching(f"{server.url}?db=77", caplog, up=False) as watch:
            await until(lambda: watch.store.stats.outages == 1)
            await watch.outage()
            assert "DB index" in caplog.text

    @pytest.mark.parametrize("url", ["http://host", "redis://:s3cret@host:port", "host:6379"])
    def test_what_is_no_url_is_said_at_once(self, url: str) -> None:
        with pytest.raises(ValueError, match="URL") as caught:
            TelemetryStore(url, "app")
        assert "s3cret" not in str(caught.value)

    async def test_tls_password_and_database_together(
        self, server: RealServer, tmp_path: Path
    ) -> None:
        """The bundled server has no TLS: a door before it does, the client is the product's own."""
        certificate, key = self_signed(tmp_path)
        with server.client() as client:
            client.config_set("requirepass", "p/w")
        async with tls_door(server, certificate, key) as port:
            url = f"rediss://:p%2Fw@127.0.0.1:{port}/3?ssl_ca_certs={certificate}"
            store = TelemetryStore(url, "app", limits=QUICK)
            store.add_decisions([decision(1)])
            store.start()
            await until(lambda: store.up and not store.stats.buffered)
            await store.close()
            assert len((await read_state(url, "app")).decisions) == 1
        with server.client(password="p/w") as client:
            assert client.info("keyspace").keys() == {"db3"}

    @pytest.mark.parametrize("option", ["", "?ssl_ca_certs=/nowhere/ca.pem"])
    async def test_a_certificate_that_nobody_vouches_for_is_an_outage(
        self, server: RealServer, caplog: pytest.LogCaptureFixture, tmp_path: Path, option: str
    ) -> None:
        async with (
            tls_door(server, *self_signed(tmp_path)) as port,
            watching(f"rediss://127.0.0.1:{port}/0{option}", caplog, up=False) as watch,
        ):
            await until(lambda: watch.store.stats.outages == 1)
            await watch.outage()
        with server.client() as client:
            assert client.keys("*") == []

    async def test_every_key_begins_with_the_namespace(self, server: RealServer) -> None:
        store = TelemetryStore(server.url, "app", namespace="mine", limits=QUICK)
        store.put_snapshot(snapshot(1))
        store.add_decisions([decision(1)])
        store.put_checkpoint("e2", {})
        store.start()
        await until(lambda: store.up and not store.stats.buffered)
        await store.close()
        with server.client() as client:
            keys = client.keys("*")
        assert len(keys) == 5
        assert all(key.startswith(b"mine:app:") for key in keys)
        assert len((await read_state(server.url, "app", namespace="mine")).decisions) == 1
        assert not (await read_state(server.url, "app")).decisions


class TestTwice:
    async def test_a_batch_that_was_written_and_not_acknowledged_is_read_once(
        self, server: RealServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with watching(server.url, caplog) as watch:
            with server.client() as client:
                for fields in client.xrange(KEYS.decisions):
                    client.xadd(KEYS.decisions, fields[1])
                assert client.xlen(KEYS.decisions) == 6
            state = await read_state(server.url, "app")
            assert [r.decision.request_id for r in state.decisions] == ["r3", "r2", "r1"]
            state = await read_state(server.url, "app", decisions=2)
            assert [r.decision.request_id for r in state.decisions] == ["r3", "r2"]
            assert watch.warnings == 0
