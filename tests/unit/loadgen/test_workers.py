"""Several processes fire one schedule: every request once, on one clock, rows in order."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.bench.noop_server import noop_server
from loadgen.bench.priority import real_time_priority
from loadgen.cli import main
from loadgen.rows import Outcome, PlannedRequest
from loadgen.workers import Target, WorkerFailed, fire, processes_for


def planned(count: int, gap_s: float = 0.02) -> list[PlannedRequest]:
    body = {"stream": True, "messages": [{"role": "user", "content": "plain"}]}
    return [PlannedRequest(i * gap_s, {**body, "n": i}) for i in reversed(range(count))]


def test_two_processes_send_each_request_once_at_its_time() -> None:
    requests, done = planned(41), []
    with noop_server() as url:
        begun_s = time.monotonic()
        rows = fire(requests, Target(url, timeout_s=20.0), processes=2, on_done=done.append)
    assert [r.id for r in rows] == [str(i) for i in range(41)]
    assert [r.scheduled_s for r in rows] == [r.at_s for r in requests]
    assert all(r.answered and r.output_tokens == 16 for r in rows)
    assert all((r.lateness_s or 0.0) >= 0 for r in rows)
    assert sum(done) == 41
    assert time.monotonic() - begun_s > 40 * 0.02


def test_a_closed_loop_is_shared_between_processes(peer: Any) -> None:
    rows = fire(planned(6), Target(peer.url, timeout_s=20.0), concurrency=3, processes=2)
    assert sorted(b["n"] for b in peer.bodies) == list(range(6))
    assert all(r.answered for r in rows)
    begins = sorted(r.sent_s or 0.0 for r in rows)
    first_end_s = min(r.ended_s or 0.0 for r in rows)
    assert sum(b < first_end_s for b in begins) <= 3


def test_one_process_needs_no_other(peer: Any) -> None:
    done: list[int] = []
    (row,) = fire(planned(1), Target(peer.url), on_done=done.append)
    assert row.outcome is Outcome.ANSWERED
    assert done == [1]


def test_a_process_that_breaks_is_said_so() -> None:
    requests = [PlannedRequest(0.0, {"x": object})]  # no JSON, and it cannot be told from afar
    with pytest.raises(WorkerFailed, match="TypeError"):
        fire(requests * 2, Target("http://127.0.0.1:9"), processes=2)


def test_more_processes_than_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="3 processes"):
        fire(planned(1), Target(""), concurrency=2, processes=3)


def test_processes_follow_the_rate_up_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert [processes_for(r) for r in (None, 1.0, 500.0, 501.0, 9e9)] == [1, 1, 1, 2, 4]


def test_the_bench_runs_every_seed_at_the_priority_that_it_was_told(tmp_path: Path) -> None:
    out = tmp_path / "g.json"
    arguments = ["--rate", "50", "--rate", "80", "--seconds", "0.2", "--processes", "1"]
    arguments += ["--seeds", "2", "--seed", "3", "--priority", "ordinary", "--json", str(out)]
    result = CliRunner().invoke(main, ["bench", "generator", *arguments])
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert [(p["rate"], p["seed"]) for p in written["points"]] == [
        (50.0, 3),
        (50.0, 4),
        (80.0, 3),
        (80.0, 4),
    ]
    assert written["priority"] == "ordinary"
    assert "not allowed" not in result.output


def test_real_time_priority_is_had_or_missed_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []

    def note(pid: int, policy: int, parameter: os.sched_param) -> None:
        asked.append((policy, parameter.sched_priority))

    monkeypatch.setattr(os, "sched_setscheduler", note)
    with real_time_priority() as had:
        assert had == "real-time"
        assert asked == [(os.SCHED_RR, 1)]
    assert asked[1] == (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)

    def refuse(pid: int, policy: int, parameter: os.sched_param) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with real_time_priority() as had:
        assert had == "ordinary"


def test_the_bench_of_the_generator_counts_and_times_what_it_sent(tmp_path: Path) -> None:
    out = tmp_path / "g.json"
    arguments = ["--rate", "100", "--seconds", "0.5", "--processes", "1", "--json", str(out)]
    result = CliRunner().invoke(main, ["bench", "generator", *arguments])
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert f"{written['priority']} priority" in result.output
    (point,) = written["points"]
    assert point["outcomes"] == {"answered": 50}
    assert point["lateness_s"]["count"] == 50
    assert point["holds"] is (point["lateness_s"]["p99"] < 0.020)
