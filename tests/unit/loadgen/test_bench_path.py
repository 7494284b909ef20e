"""The benchmarks of path and memory: rows, client, CPU and memory readings; no Ray."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.bench import memory, path
from loadgen.bench.http_load import BadAnswer, Load, drive, request_bytes
from loadgen.bench.ports import free_ports
from loadgen.bench.processes import cpu_s, families, rss_bytes


def sample(cpu_ms: float, latency_ms: float = 1.0) -> path.Sample:
    parts = dict.fromkeys(path.PARTS, cpu_ms / len(path.PARTS))
    return path.Sample(cpu_ms, 100.0, latency_ms, latency_ms / 2, parts, 100)


class TestRows:
    def test_there_is_one_row_a_combination_with_the_median_of_its_repeats(self) -> None:
        samples = {
            ("prism", 1, False): [sample(9.0, 5.0), sample(3.0, 7.0), sample(4.0, 6.0)],
            ("bare", 1, False): [sample(2.0, 1.0), sample(9.0, 2.0), sample(1.0, 3.0)],
            ("floor", 1, False): [sample(0.5, 0.5)],
            ("prism", 1, True): [sample(8.0)],
        }
        rows = {(r.arm, r.streaming): r for r in path.rows_of("haproxy", samples)}
        assert len(rows) == 4
        row = rows["prism", False]
        assert (row.cpu_ms_per_request, row.repeats, row.serve_mode) == (4.0, 3, "haproxy")
        assert row.cpu_vs_bare == 2.0
        assert row.added_to_bare_ms == 4.0
        assert row.added_to_floor_ms == 5.5
        assert rows["prism", True].cpu_vs_bare is None

    def test_cpu_is_shared_out_among_the_requests(self) -> None:
        load = Load(10, 2.0, [0.1] * 10, [0.05] * 10)
        found = path.sample_of(
            load, {"proxy": 0.01, "ingress": 0.03, "actor": 0.0, "replica": 0.02}
        )
        assert found.cpu_ms_per_request == pytest.approx(6.0)
        assert found.requests_per_s == 5.0
        assert found.first_byte_ms == pytest.approx(50.0)
        assert found.parts_ms["ingress"] == pytest.approx(3.0)

    def test_a_meter_reads_one_arm_and_the_proxies(self) -> None:
        me = os.getpid()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            roles = {
                me: ("prism", "ingress"),
                other.pid: ("bare", "ingress"),
                1: ("shared", "proxy"),
            }
            meter = path.Meter(roles, "prism")
            before = meter.read_s()["ingress"]
            _burn(0.1)
            after = meter.read_s()["ingress"]
            assert 0.05 <= after - before < 5
            assert path.Meter({other.pid: ("bare", "ingress")}, "prism").read_s()["ingress"] == 0
            assert other.stdin is not None
            other.stdin.close()

    def test_bodies_are_chats_with_marked_passages(self) -> None:
        body = json.loads(path.body(7, streaming=True))
        marks = [p.get("prism") for p in body["messages"][1]["content"]]
        assert [m["segment"] for m in marks if m] == ["p7", "p8"]
        assert body["stream"] is True


class TestMemory:
    def test_the_slope_is_that_of_a_line_through_noise(self) -> None:
        points = [(x, 1000 + 20 * x + (7 if x % 20 else -7)) for x in range(0, 1000, 10)]
        assert memory.slope(points) == pytest.approx(20.0, abs=0.1)
        with pytest.raises(ValueError, match="no slope"):
            memory.slope([(5, 1), (5, 2)])

    def test_the_first_fifth_does_not_count(self) -> None:
        seen = [(x, 50_000 * min(x, 200)) for x in range(0, 1001, 10)]
        row = memory.rows_of("prism", "ingress", "haproxy", 1000, seen)
        assert row.slope_bytes_per_request == 0
        assert row.rss_end_bytes == 50_000 * 200

    def test_no_two_passages_are_the_same(self) -> None:
        following = memory.distinct_bodies(40)
        texts = [
            part["text"]
            for _ in range(50)
            for part in json.loads(following())["messages"][0]["content"][:2]
        ]
        assert len(set(texts)) == 100

    def test_passages_fill_the_token_cache_within_the_warm_up(self) -> None:
        for requests in (20_000, 100_000):
            words = 2 * memory.passage_words(requests) * memory.WARM_UP * requests
            assert words >= memory.TOKEN_CACHE_TOKENS


def idle_books() -> dict[str, Any]:
    return {
        "qas": {"waiting": 0, "sent": 0},
        "qas_tables": {"ingresses": 1, "cancelled_early": 4096, "deadlines": 0},
        "window": {"queued": 0, "active": 0},
        "seats": [
            {
                "replica": "r",
                "sent": 0,
                "not_prefilled": 0,
                "foreign": 0,
                "resident_tokens": 100,
                "pool_tokens": 100,
            }
        ],
        "replica": {"held": 0},
        "ingress_tables": {
            "held_bytes": 0,
            "loaded_replicas": 0,
            "handles": 1,
            "cached_text_tokens": memory.TOKEN_CACHE_TOKENS,
        },
    }


class TestBooks:
    def test_bounded_tables_may_be_full_and_nothing_else_may_hold_anything(self) -> None:
        assert memory.beyond_bounds(idle_books()) == []
        for table, name, value in (
            ("qas", "waiting", 1),
            ("qas_tables", "deadlines", 1),
            ("qas_tables", "cancelled_early", 4097),
            ("window", "active", 1),
            ("replica", "held", 1),
            ("ingress_tables", "held_bytes", 1),
            ("ingress_tables", "cached_text_tokens", memory.TOKEN_CACHE_TOKENS + 1),
        ):
            books = idle_books()
            books[table][name] = value
            (found,) = memory.beyond_bounds(books)
            assert name in found
        books = idle_books()
        books["seats"][0] |= {"sent": 1, "resident_tokens": 101}
        assert len(memory.beyond_bounds(books)) == 2

    def test_the_bounds_are_those_of_the_tables(self) -> None:
        from prism_ray.serving import inference, qas_actor

        assert (qas_actor.CANCELLED_MAX, inference.HANDLES_MAX) == (
            memory.CANCELLED_MAX,
            memory.HANDLES_MAX,
        )


class TestProcesses:
    def test_children_belong_to_the_family_and_their_cpu_counts(self) -> None:
        burn = (
            "import subprocess,sys;subprocess.run([sys.executable,'-c','sum(range(80_000_000))'])"
        )
        with subprocess.Popen(
            [sys.executable, "-c", burn + ";input()"], stdin=subprocess.PIPE
        ) as parent:
            deadline = time.monotonic() + 20
            while cpu_s(families([parent.pid])[parent.pid]) < 0.1:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert parent.stdin is not None
            parent.stdin.close()
        assert parent.pid in families([os.getpid(), parent.pid])[parent.pid]
        assert cpu_s([parent.pid]) == 0.0

    def test_resident_memory_grows_with_what_is_held(self) -> None:
        before = rss_bytes(os.getpid())
        with mmap.mmap(
            -1, 30_000_000
        ) as held:  # the allocator might have as much to hand out again
            held.write(b"x" * len(held))
            assert 20_000_000 < rss_bytes(os.getpid()) - before < 60_000_000

    def test_free_ports_are_different(self) -> None:
        assert len(set(free_ports(8))) == 8


def _burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"5\r\nhel",
    b"lo\r\n0\r\n",
    b"\r\n",
)


async def serve(pieces: tuple[bytes, ...], delay_s: float = 0.0) -> tuple[asyncio.Server, int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(delay_s)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def times(count: int, request: bytes) -> Callable[[], bytes | None]:
    left = count

    def following() -> bytes | None:
        nonlocal left
        left -= 1
        return request if left >= 0 else None

    return following


class TestClient:
    @pytest.mark.parametrize("pieces", [(WHOLE,), CHUNKED, tuple(bytes([b]) for b in WHOLE)])
    async def test_every_answer_is_read_to_its_end(self, pieces: tuple[bytes, ...]) -> None:
        server, port = await serve(pieces, 0.001)
        async with server:
            load = await drive(port, 3, times(10, request_bytes(port, "/x", b"{}")))
        assert load.requests == len(load.latency_s) == len(load.first_byte_s) == 10
        assert sum(load.first_byte_s) <= sum(load.latency_s)

    async def test_an_error_ends_the_run(self) -> None:
        server, port = await serve((b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",))
        async with server:
            with pytest.raises(BadAnswer, match="503"):
                await drive(port, 2, times(10, request_bytes(port, "/x", b"{}")))

    async def test_a_broken_connection_ends_the_run(self) -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(BadAnswer, match="broke"):
                await drive(port, 1, times(1, request_bytes(port, "/x", b"{}")))
