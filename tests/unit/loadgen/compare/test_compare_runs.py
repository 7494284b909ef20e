"""A comparison's directory: what is resumed, what is refused, what a run comes to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.compare.arms import ARMS, SEVERAL, Arm, arms_of
from loadgen.compare.router import ROUTERS
from loadgen.compare.runs import (
    ComparisonMismatch,
    RunDirectory,
    Served,
    Step,
    columns,
    figures,
    steps,
)

STEP = Step(ARMS["prism"], 0.9, 4.5, 3)


def served(arrival_s: float = 1.0, first_s: float | None = 1.5, cached: int = 40) -> Served:
    finished_s = None if first_s is None else first_s + 0.5
    return Served(arrival_s, 100, cached, first_s, finished_s, 0.001)


def test_a_run_that_is_there_is_not_missing(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert not directory.has(STEP)
    directory.keep(STEP, {"hit_rate": 0.5})
    assert RunDirectory(tmp_path).has(STEP)
    assert directory.result(STEP)["hit_rate"] == 0.5
    assert not directory.has(replace(STEP, seed=4))
    assert not directory.has(replace(STEP, load=1.2))


def test_a_run_of_another_rate_or_arm_is_refused_and_kept(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.keep(STEP, {"hit_rate": 0.5})
    with pytest.raises(ComparisonMismatch, match="another qps"):
        directory.has(replace(STEP, qps=4.6))
    other = replace(STEP.arm, options={"horizon": 3})
    with pytest.raises(ComparisonMismatch, match="another arm"):
        directory.has(replace(STEP, arm=other))
    assert directory.result(STEP)["qps"] == 4.5


def test_what_all_runs_share_may_not_change(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.share("setting.json", {"workload": {"requests": 160}, "machine": "cpu"})
    directory.share("setting.json", {"workload": {"requests": 160}, "machine": "cpu"})
    with pytest.raises(ComparisonMismatch, match=r"setting\.json says another workload"):
        directory.share("setting.json", {"workload": {"requests": 100}, "machine": "cpu"})


def test_a_file_that_was_not_finished_is_no_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    (tmp_path / "runs" / (STEP.file_name + ".unfinished")).write_text('{"half')
    assert not directory.has(STEP)
    with pytest.raises(ValueError, match="holds no runs"):
        directory.runs()


def test_files_are_json_with_a_line_a_key(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.keep(STEP, {"rows": {"ttft_s": [0.1, 0.2]}})
    text = (tmp_path / "runs" / STEP.file_name).read_text()
    assert '"rows": {"ttft_s": [0.1, 0.2]}' in text.splitlines()
    assert json.loads(text)["seed"] == 3


def test_arms_are_innermost_and_take_turns_to_be_first() -> None:
    arms = arms_of(["sglang-fcfs", "sglang-lpm", "prism"])
    made = list(steps(arms, (0.9, 1.2), (0, 1), 10.0))
    assert len(made) == len({made_key(s) for s in made}) == 12
    groups = [made[i : i + 3] for i in range(0, 12, 3)]
    assert all(len({(s.seed, s.load) for s in group}) == 1 for group in groups)
    assert [g[0].arm.name for g in groups] == ["sglang-fcfs", "sglang-lpm", "prism", "sglang-fcfs"]
    assert {(s.load, s.qps) for s in made} == {(0.9, 9.0), (1.2, 12.0)}


def made_key(step: Step) -> tuple[str, float, int]:
    return step.arm.name, step.load, step.seed


def test_file_names_tell_every_run_of_all_arms_apart() -> None:
    made = list(steps(list(ARMS.values()), (0.9, 1.2), range(3), 5.0))
    assert len({step.file_name for step in made}) == len(made)


def test_figures_count_from_the_scheduled_arrival() -> None:
    told = figures([served(), served(2.0, 2.25, cached=60)])
    assert told["hit_rate"] == 0.5
    assert told["ttft_s"]["mean"] == pytest.approx(0.375)
    assert told["span_s"] == 2.75
    assert told["throughput_rps"] == pytest.approx(2 / 2.75)
    assert told["answered_in_arrival_period"] == 0.5


@pytest.mark.parametrize("lost", [served(first_s=None), replace(served(), error="500: no")])
def test_a_run_with_an_unanswered_request_has_no_figures(lost: Served) -> None:
    with pytest.raises(RuntimeError, match="1 of 2 requests were not answered"):
        figures([served(), lost])


def test_columns_keep_what_figures_were_made_of() -> None:
    kept = columns([served(), served(2.0, 2.25)])
    assert kept["ttft_s"] == [0.5, 0.25]
    assert kept["cached_tokens"] == [40, 40]
    assert kept["finished_s"] == [2.0, 2.75]


def test_unknown_arms_are_named() -> None:
    with pytest.raises(ValueError, match="no arm shortest with 1 engines; known: sglang-fcfs, "):
        arms_of(["prism", "shortest"])


def test_native_arms_have_nothing_of_ours() -> None:
    for arm in ARMS.values():
        assert isinstance(arm, Arm)
        assert not arm.native or arm.retention == "lru"
        assert arm.native == arm.name.startswith("sglang-")
        assert not arm.placement
    for arm in SEVERAL.values():
        assert arm.native == (arm.placement in ROUTERS)
    assert ARMS["qas+dart"].retention == "dart"
    assert ARMS["prism"].retention == "planned"
