"""The Locust file in real Locust processes, headless and with the web page, and the queue it is made of."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadgen.arrival_queue import LOOK_AHEAD_S, ArrivalQueue
from loadgen.bench.noop_server import noop_server
from loadgen.bench.ports import free_ports
from loadgen.report.points import read_points
from loadgen.rows import PlannedRequest, RequestRow, RunRecord

# Importing Locust here would patch this process's sockets and threads (gevent).
pytestmark = pytest.mark.skipif(find_spec("locust") is None, reason="Locust is not installed")

ROOT = Path(__file__).parents[3]


def command(url: str, *arguments: object) -> list[str]:
    file = ROOT / "loadgen" / "locustfile.py"
    fixed = ["-m", "locust", "-f", file, "--host", url, "--texts", "made", "--requests", 30]
    return [sys.executable, *(str(a) for a in (*fixed, *arguments))]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class TestQueue:
    def test_each_request_is_taken_once_in_the_order_of_times(self) -> None:
        queue = ArrivalQueue([PlannedRequest(t, {}) for t in (2.0, 0.0, 1.0)])
        assert [r.at_s for r in iter(queue.take, None)] == [0.0, 1.0, 2.0]

    def test_there_is_a_user_for_whatever_is_under_way_and_for_what_comes_next(self) -> None:
        times = [0.0, 0.0, LOOK_AHEAD_S + 1, LOOK_AHEAD_S + 1.5, LOOK_AHEAD_S + 50]
        queue = ArrivalQueue([PlannedRequest(t, {}) for t in times])
        assert queue.users(0.0) == 2
        assert queue.users(1.0) == 3
        assert queue.users(2.0) == 4
        for name in "abc":
            queue.finish(RequestRow(name, 0.0))
        assert queue.users(60.0) == 4  # users are not sent away
        assert not queue.over
        for name in "de":
            queue.finish(RequestRow(name, 0.0))
        assert queue.over


def test_headless_it_sends_all_and_leaves_ttft_and_itl_as_statistics(tmp_path: Path) -> None:
    rows_out = tmp_path / "rows.json"
    with noop_server() as url:
        arguments = ["--headless", "--only-summary", "--arrivals", "bursts", "--rate", 30]
        arguments += ["--csv", tmp_path / "stats", "--rows-out", rows_out]
        done = subprocess.run(
            command(url, *arguments),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    with (tmp_path / "stats_stats.csv").open(newline="") as file:
        counts = {(r["Type"], r["Name"]): int(r["Request Count"]) for r in csv.DictReader(file)}
    assert counts[("request", "E2E")] == 30
    assert counts[("stream", "TTFT")] == 30
    assert counts[("stream", "ITL")] == 30 * 15
    assert counts[("generator", "lateness")] == 30
    record = RunRecord.read(rows_out)
    assert all(r.answered and r.output_tokens == 16 for r in record.rows)
    assert len({r.scheduled_s for r in record.rows}) < 30  # bursts
    assert "hit rate" in done.stdout


def run(url: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(url, "--headless", "--only-summary", *arguments),
        env=environment(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_a_traces_options_the_bodies_limits_the_flush_and_the_warm_up_are_those_of_run(
    peer: Any, tmp_path: Path
) -> None:
    rows_out, stats = tmp_path / "l.run.json", tmp_path / "stats"
    arguments = ["--rate", 40, "--requests", 20, "--warm-up", 0.25, "--flush", "--ignore-eos"]
    arguments += ["--max-tokens", 7, "-o", "segment_tokens=24", "--csv", stats]
    done = run(peer.url, *arguments, "--rows-out", rows_out)
    assert done.returncode == 0, done.stderr[-2000:]
    assert peer.flushes == 1
    assert len(peer.bodies) == 20
    for body in peer.bodies:
        assert (body["max_tokens"], body["ignore_eos"], body["model"]) == (7, True, "tiny")
        marked = [p["text"] for p in body["messages"][-1]["content"] if "prism" in p]
        assert {len(text.split()) for text in marked} == {24}
    with (tmp_path / "stats_stats.csv").open(newline="") as file:
        counts = {(r["Type"], r["Name"]): int(r["Request Count"]) for r in csv.DictReader(file)}
    assert counts[("request", "E2E")] == 15
    assert "requests   15: 15 answered" in done.stdout
    assert len(RunRecord.read(rows_out).rows) == 20
    (point,) = read_points(tmp_path)
    assert (point.rate, point.summary["requests"]) == (40.0, 15)


def test_recorded_arrivals_are_kept_and_a_refusal_says_when_to_come_again(
    peer: Any, tmp_path: Path
) -> None:
    file, rows_out = tmp_path / "recorded.jsonl", tmp_path / "rows.json"
    times_ms = [10_000, 10_100, 10_150, 11_000]
    words = ["plain", "full", "plain", "plain"]
    lines = [
        {"timestamp": t, "body": {"messages": [{"role": "user", "content": word}]}}
        for t, word in zip(times_ms, words, strict=True)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    done = run(peer.url, "--source", file, "--arrivals", "file", "--rows-out", rows_out)
    assert done.returncode == 1  # Locust's word for a failed request
    rows = RunRecord.read(rows_out).rows
    assert [r.scheduled_s for r in rows] == pytest.approx([0.0, 0.1, 0.15, 1.0])
    assert [r.retry_after for r in rows] == [None, "3", None, None]
    assert [r.queue_ms for r in rows] == [12.5, None, 12.5, 12.5]
    assert all((r.sent_s or 0.0) >= r.scheduled_s for r in rows)
    assert "model" not in peer.bodies[0]


def test_a_server_that_cannot_flush_ends_the_test_before_it_begins(peer: Any) -> None:
    done = run("http://127.0.0.1:9", "--flush")
    assert done.returncode != 0
    assert "cannot flush the cache" in done.stderr + done.stdout


def test_the_web_page_shows_the_same_statistics_and_failures_by_kind(peer: Any) -> None:
    (port,) = free_ports(1)
    arguments = ["--autostart", "--web-host", "127.0.0.1", "--web-port", port, "--rate", 30]
    process = subprocess.Popen(
        command("http://127.0.0.1:9", *arguments),
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as page:
            stats = _poll(page, lambda s: s["state"] in ("stopped", "stopping"))
            assert "Locust" in page.get("/").text
        names = {s["name"]: s for s in stats["stats"]}
        assert names["E2E"]["num_requests"] == 30
        assert {e["error"] for e in stats["errors"]} == {"NotAnswered('connection ')"}
    finally:
        process.terminate()
        process.wait(60)


def _poll(page: httpx.Client, there: Any) -> Any:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            stats = page.get("/stats/requests").json()
            if there(stats):
                return stats
        except httpx.HTTPError:
            pass
        time.sleep(0.3)
    raise AssertionError("Locust did not get through its arrivals")
