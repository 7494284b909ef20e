"""The command without engines: what it resumes, predicts and writes; a lab that simulates serves it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from click.testing import CliRunner

from loadgen.compare import command
from loadgen.compare.arms import arms_of
from loadgen.compare.command import Plan, finish, measure
from loadgen.compare.machine import Machine
from loadgen.compare.prediction import hit_bound, predict
from loadgen.compare.runs import RunDirectory, Step, told
from loadgen.compare.workload import Workload, hashes

PROFILE = "a800-qwen3-4b"
WORKLOAD = Workload("zipf_hotspot", {}, 40)
LIMITS = {
    "pool_tokens": 12_000,
    "chunked_prefill_tokens": 2_048,
    "max_running": 8,
    "page_size": 1,
}


class SimulatedLab:
    """Serves steps in virtual time, so that everything but the engines is the real thing."""

    ran: list[str] = []  # noqa: RUF012 - one for the test

    def __init__(
        self, machine: Machine, workload: Workload, room: int | None, replicas: int, python: str
    ) -> None:
        self.workload = workload

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None
    ) -> None:
        return None

    def run(self, step: Step) -> dict[str, Any]:
        self.ran.append(step.file_name)
        trace = self.workload.made(step.seed)
        times_s = self.workload.times_s(trace, step.qps, step.seed)
        result = {"hashes": hashes(trace, times_s, LIMITS), "limits": LIMITS, "tells_cache": True}
        done = predict({**told(step), **result}, self.workload, PROFILE)
        return {
            **result,
            **done,
            "ttft_s": {**done["ttft_s"], "max": 1e3},
            "latency_s": {"max": 1e3},
            "throughput_rps": 1.0,
            "span_s": 1.0,
            "answered_in_arrival_period": 1.0,
            "machine_load": {"cores": 2, "own_cores": 1.0, "others_cores": 0.0},
            "git_commit": "0" * 40,
            "rows": {"ttft_s": [0.1, 0.2]},
        }


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(command, "Lab", SimulatedLab)
    monkeypatch.setattr(SimulatedLab, "ran", [])
    machine = Machine("test", "nowhere", True, {}, pool_by_workload=True, profile=PROFILE)
    arms = arms_of(["sglang-fcfs", "prism"])
    never = float("inf")
    directory = RunDirectory(tmp_path / "out")
    return Plan(machine, WORKLOAD, directory, arms, arms[:1], (1.0,), range(2), None, never)


def test_what_is_there_is_not_run_again(plan: Plan) -> None:
    measure(plan, knee_qps=60.0)
    first = list(SimulatedLab.ran)
    assert len(first) == 4
    gone = plan.directory.path / "runs" / first[2]
    gone.unlink()
    measure(plan, knee_qps=60.0)
    assert SimulatedLab.ran == [*first, first[2]]


def test_a_budget_that_is_spent_begins_no_run_and_the_next_call_goes_on(plan: Plan) -> None:
    measure(replace(plan, until_s=0.0), knee_qps=60.0)
    assert SimulatedLab.ran == []
    measure(plan, knee_qps=60.0)
    assert len(SimulatedLab.ran) == 4


def test_quick_has_a_budget_whole_seeds_come_first_and_the_page_says_how_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    now_s = [0.0]

    class Slow(SimulatedLab):
        """Every run takes 250 s."""

        def run(self, step: Step) -> dict[str, Any]:
            now_s[0] += 250.0
            return super().run(step)

    host = Machine("test", "nowhere", True, {}, True, WORKLOAD, profile=PROFILE)
    monkeypatch.setattr(command, "Lab", Slow)
    monkeypatch.setattr(SimulatedLab, "ran", [])
    monkeypatch.setattr(command, "machine", lambda source: host)
    monkeypatch.setattr("loadgen.compare.command.time.monotonic", lambda: now_s[0])
    asked = ["--out", str(tmp_path), "--quick", "--knee", "60", "--load", "1"]
    arms = ["--arm", "sglang-fcfs", "--arm", "prism"]
    done = CliRunner().invoke(command.compare, [*asked, *arms, "--seeds", "4"])
    assert done.exit_code == 0, done.output
    assert "measured for 25.0 minutes; 2 runs are left for another call" in done.output
    assert {name.split("seed")[1] for name in SimulatedLab.ran} == {"0.json", "1.json", "2.json"}
    page = (tmp_path / "index.md").read_text()
    assert "Measured for 25 minutes in 1 call. **2 runs are left**" in page
    done = CliRunner().invoke(command.compare, [*asked, *arms, "--seeds", "4"])
    assert "Measured for 33 minutes in 2 calls." in (tmp_path / "index.md").read_text()
    assert "are left" not in done.output
    assert len(SimulatedLab.ran) == 8
    slow = CliRunner().invoke(
        command.compare, ["--out", str(tmp_path / "all"), *asked[3:], *arms, "--seeds", "4"]
    )
    assert "measured for 33.3 minutes" in slow.output, "only --quick has a budget of its own"


@pytest.mark.parametrize(
    ("tried", "says"),
    [
        (["sglang-fcfs"], "what `sglang-fcfs` answers when all requests wait from the start"),
        (
            ["sglang-fcfs", "sglang-lpm"],
            "what the best of `sglang-fcfs`, `sglang-lpm` (`sglang-lpm`) answers",
        ),
    ],
)
def test_the_page_says_by_which_arms_the_knee_was_found(
    plan: Plan, tried: list[str], says: str
) -> None:
    pytest.importorskip("matplotlib")
    measure(plan, knee_qps=60.0)
    runs = [{"arm": arm, "throughput_rps": 1.0} for arm in tried]
    plan.directory.write("knee.json", {"qps": 60.0, "arm": tried[-1], "tried": runs})
    finish(plan.directory)
    page = (plan.directory.path / "index.md").read_text()
    assert says in page
    assert ("no other arm was tried" in page) is (len(tried) == 1)


def test_every_run_gets_the_prediction_of_its_own_arrivals(plan: Plan) -> None:
    measure(plan, knee_qps=60.0)
    for result in plan.directory.runs():
        assert result["predicted"]["hit_rate"] == pytest.approx(result["hit_rate"])


def test_every_run_gets_a_bound_that_it_does_not_pass(plan: Plan) -> None:
    measure(plan, knee_qps=60.0)
    for result in plan.directory.runs():
        assert result["hit_rate"] <= result["hit_bound"] < 0.7
    with pytest.raises(ValueError, match=r"hit rate 0\.8.* is above B4"):
        hit_bound({**result, "hit_rate": 0.8}, WORKLOAD)


def test_a_prediction_for_other_prompts_is_refused(plan: Plan) -> None:
    measure(plan, knee_qps=60.0)
    result = plan.directory.runs()[0]
    result["hashes"]["prompts"] = "others"
    with pytest.raises(ValueError, match="the prompts are not the run's"):
        predict(result, WORKLOAD, PROFILE)


def test_the_page_has_table_verdicts_and_plots_and_changes_with_a_run(plan: Plan) -> None:
    pytest.importorskip("matplotlib")
    measure(plan, knee_qps=60.0)
    finish(plan.directory)
    page = (plan.directory.path / "index.md").read_text()
    assert "| 1 | `sglang-fcfs` | 2 |" in page
    assert "prism beats sglang-fcfs" in page
    assert "commit that is not in your clone" in page
    for plot in ("ttft-p99.svg", "hit-rate.svg", "ttft-cdf.svg"):
        assert plot in page
        assert (plan.directory.path / plot).read_text().startswith("<?xml")
    summary = json.loads((plan.directory.path / "summary.json").read_text())
    assert len(summary["rows"]) == 2
    file = next((plan.directory.path / "runs").glob("prism*"))
    changed = json.loads(file.read_text())
    changed["ttft_s"]["p99"] = 1e6
    file.write_text(json.dumps(changed))
    finish(plan.directory)
    assert (plan.directory.path / "index.md").read_text() != page


def test_another_knee_for_the_same_directory_is_refused(plan: Plan) -> None:
    measure(plan, knee_qps=60.0)
    with pytest.raises(ValueError, match=r"knee\.json says another qps"):
        measure(plan, knee_qps=61.0)


def test_a_trace_without_its_data_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRISM_SHARED_DATA", str(tmp_path / "nowhere"))
    machine = Machine("test", "nowhere", True, {}, pool_by_workload=True, profile=PROFILE)
    monkeypatch.setattr(command, "machine", lambda source: machine)
    done = CliRunner().invoke(command.compare, ["--out", str(tmp_path / "c"), "--seeds", "1"])
    assert done.exit_code == 1
    assert "no data at" in done.output
    assert "PRISM_SHARED_DATA" in done.output


def test_a_directory_without_runs_has_no_report(tmp_path: Path) -> None:
    done = CliRunner().invoke(command.compare, ["--out", str(tmp_path), "--report-only"])
    assert done.exit_code == 1
    assert "holds no runs" in done.output
