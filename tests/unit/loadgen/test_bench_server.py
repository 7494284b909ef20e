"""``bench server``: what a block measures, and what differences are paired with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from loadgen.bench.noop_server import noop_server
from loadgen.bench.server import ENGINE_PROCESS, Block, Meter, _row, block, body, table
from loadgen.bench.servers import Server
from loadgen.intervals import half_width


@pytest.fixture(scope="module")
def noop() -> Iterator[list[Server]]:
    with noop_server() as url:
        yield [Server(int(url.rsplit(":", 1)[1].split("/")[0]), os.getpid())]


def test_a_block_has_the_first_token_before_the_end(noop: list[Server]) -> None:
    taken = block(noop, [body(n, True, "us") for n in range(5)], idle_s=0.0)
    assert 0 < taken.ttft_ms <= taken.latency_ms
    assert taken.engine_cpu_ms == 0


def test_what_is_used_anyway_is_not_counted_as_the_path_s(noop: list[Server]) -> None:
    bodies = [body(n, True, "us") for n in range(50)]
    assert block(noop, bodies, idle_s=0.0).path_cpu_ms > 0
    assert block(noop, bodies, idle_s=1e6).path_cpu_ms == 0


def test_an_answer_that_is_none_ends_the_measurement(noop: list[Server]) -> None:
    closed = [Server(1, noop[0].pid)]
    with pytest.raises(RuntimeError, match="no answer"):
        block(closed, [body(0, True, "us")], idle_s=0.0)


def test_the_models_process_is_counted_by_itself() -> None:
    work = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    process = subprocess.Popen([sys.executable, "-c", work, ENGINE_PROCESS])
    try:
        time.sleep(0.2)
        meter = Meter([process.pid])
        before = meter.read_s()
        deadline = time.monotonic() + 20
        while meter.read_s()[1] == before[1] and time.monotonic() < deadline:
            time.sleep(0.05)
        path_s, engine_s = meter.read_s()
        assert engine_s > before[1]
        assert path_s == 0
    finally:
        process.kill()
        process.wait()


def test_differences_are_paired_block_by_block() -> None:
    base = [Block(10, 20, 1, 5), Block(30, 60, 1, 5)]
    ours = [Block(12, 21, 2, 5), Block(33, 63, 4, 5)]
    row = _row("prism", True, ours, base, 0.1, 15)
    assert row.added_ttft_ms == (2.5, half_width([2, 3]))
    assert row.added_latency_ms == (2.0, half_width([1, 3]))
    assert (row.requests, row.path_cpu_ms, row.idle_cpu_ms_per_s) == (30, 3, 100)
    assert _row("sglang", True, base, base, 0.0, 15).added_ttft_ms is None
    assert "+2.5 ± 6.4" in table([row])


def test_all_arms_are_asked_the_same_passages() -> None:
    ours, theirs = body(7, True, "prism"), body(7, True, "sglang")
    assert ours["messages"][0] == theirs["messages"][0]
    text, other = ours["messages"][1]["content"], theirs["messages"][1]["content"]
    assert text != other
    assert text.split("\nQuestion")[0] == other.split("\nQuestion")[0]
