from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli import main
from loadgen.simulate import BadSpec, SimSpec, simulate
from loadgen.sweep import (
    KNEE_SHARE,
    Arm,
    Incomparable,
    SweepMismatch,
    as_csv,
    as_markdown,
    find_knee,
    grid_rate,
    load_results,
    parse_arm,
    peers,
    run_steps,
    steps,
    tabulate,
)
from loadgen.sweep.intervals import mean_interval, paired_change, paired_difference
from loadgen.sweep.knee import mean_share, search
from loadgen.sweep.plateau import fit_new_token_s, plateau

BASE = SimSpec(requests=80)
ARMS = [Arm("fcfs", {"policy": "fcfs"}), Arm("qas", {"policy": "qas"})]


def test_an_arm_is_a_policy_its_retention_and_options() -> None:
    arm = parse_arm("qas/lru policy.q_cold=8 in_flight=4")
    assert arm.name == "qas/lru policy.q_cold=8 in_flight=4"
    spec = arm.spec(BASE)
    assert (spec.policy, spec.retention, spec.in_flight) == ("qas", "lru", 4)
    assert spec.policy_options == {"q_cold": 8}
    with pytest.raises(BadSpec):
        parse_arm(" ")


# Knees


def stairs(knees: dict[str, int]) -> tuple[Callable[[Arm, float], float], list[tuple[str, float]]]:
    """Arms that keep up until their step of the grid, and what was asked of them."""
    asked: list[tuple[str, float]] = []

    def share(arm: Arm, qps: float) -> float:
        asked.append((arm.name, qps))
        return 1.0 if qps <= grid_rate(knees[arm.name]) * 1.0001 else 0.5

    return share, asked


@pytest.mark.parametrize("step", [-37, -1, 0, 1, 15, 16, 17, 70, 131])
def test_the_knee_is_the_best_arms_on_the_grid(step: int) -> None:
    share, asked = stairs({"a": step - 3, "b": step, "c": step - 20})
    found = search([Arm("a"), Arm("b"), Arm("c")], share)
    assert (found.qps, found.arm) == (grid_rate(step), "b")
    assert found.shares["b"] == 1.0
    assert len(asked) == len(set(asked)) < 30


def test_a_rate_that_fails_by_chance_does_not_end_the_search() -> None:
    def share(arm: Arm, qps: float) -> float:
        steps_passed = {0, 1, 3, 5, 7}
        return 1.0 if any(abs(qps - grid_rate(s)) < 1e-9 for s in steps_passed) or qps < 1 else 0.9

    assert search([Arm("a")], share).qps == grid_rate(7)


def test_seeds_are_run_while_there_is_doubt() -> None:
    asked: list[int] = []

    def share(seed: int) -> float:
        asked.append(seed)
        return 0.972 if seed % 2 else 0.966

    assert mean_share(share, range(9), 0.03) == pytest.approx(sum(map(share, range(9))) / 9)
    assert asked[:9] == list(range(9))
    asked.clear()
    assert mean_share(lambda seed: asked.append(seed) or 0.5, range(9), 0.03) == 0.5
    assert asked == [0]


def test_arms_that_never_keep_up_are_passed_over_and_alone_refused() -> None:
    share, _ = stairs({"never": -10_000, "b": 5})
    assert search([Arm("never"), Arm("b")], share).qps == grid_rate(5)
    with pytest.raises(ValueError, match="no arm keeps up"):
        search([Arm("never")], share)
    with pytest.raises(ValueError, match="at least one arm"):
        find_knee(BASE, [], [0])


def test_a_simulated_knee_is_where_answers_fall_behind_arrivals() -> None:
    """An engine that takes 50 ms a request, whatever it is, keeps up with just under 20 a second."""
    spec = BASE.with_options(
        {
            "requests": 400,
            "arrivals": "constant",
            "trace.output_tokens": 1,
            "engine": {"max_running": 1, "overlap": False},
            "cost": {"base_s": 0.05, "new_token_s": 0, "decode_request_s": 0, "context_token_s": 0},
            "plan_delay_s": 0,
            "credit_delay_s": 0,
        }
    )
    found = find_knee(spec, ARMS[:1], [0])
    assert found.qps <= 20 / KNEE_SHARE
    assert found.qps * 1.05 > 19.5


def test_peers_are_all_policies_but_our_own() -> None:
    names = {arm.name for arm in peers()}
    assert "fcfs" in names
    assert not names & {"qas", "prism"}


# Plateaus


def test_the_a800_profile_saturates_where_the_paper_does() -> None:
    """26,200 uncached tokens/s: about 50 requests/s of 1,029 tokens at a hit rate of 49.1%."""
    spec = SimSpec(policy="qas", qps=80.0, requests=1024)
    assert plateau(spec, [5]) == pytest.approx(26_200, rel=0.03)
    assert pytest.approx(50, rel=0.01) == 26_200 / (1029 * (1 - 0.491))


def test_a_profile_can_be_fitted_to_another_plateau() -> None:
    spec = SimSpec(policy="fcfs", qps=80.0, requests=128)
    fitted = fit_new_token_s(spec, 10_000.0, [0])
    again = replace(spec, cost_options={"new_token_s": fitted.cost.new_token_s})
    assert plateau(again, [0]) == pytest.approx(10_000, rel=0.002)
    assert fitted.cost.base_s == 0.004
    with pytest.raises(ValueError, match="cannot prefill"):
        fit_new_token_s(spec, 1e9, [0])


# Steps


def fake(spec: SimSpec) -> dict[str, Any]:
    return {
        "config": spec.to_json(),
        "qps": spec.qps,
        "seed": spec.seed,
        "policy": spec.policy,
    }


def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    todo = list(steps(BASE, ARMS, [0, 1], knee_qps=10.0, loads=[0.9, 1.2]))
    assert len({step.file_name for step in todo}) == len(todo) == 8
    ran: list[SimSpec] = []

    def stops(spec: SimSpec) -> dict[str, Any]:
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(spec)
        return fake(spec)

    with pytest.raises(KeyboardInterrupt):
        run_steps(tmp_path, todo, simulate=stops)
    assert len(load_results(tmp_path)) == 3
    assert run_steps(tmp_path, todo, simulate=fake) == 5
    assert run_steps(tmp_path, todo, simulate=stops) == 0
    loads = {(r["arm"], r["seed"], r["load"]): r["qps"] for r in load_results(tmp_path)}
    assert loads["qas", 1, 1.2] == pytest.approx(12.0)
    assert len(loads) == 8


def test_what_a_sweep_remembers_between_runs_changes_no_figure(tmp_path: Path) -> None:
    base = replace(BASE, requests=80)
    todo = list(steps(base, ARMS, [0, 1], rates=[30.0]))
    run_steps(tmp_path, todo)
    for step in todo:
        kept = json.loads((tmp_path / step.file_name).read_text())
        alone = json.loads(json.dumps(simulate(step.spec)))
        assert {name: kept[name] for name in alone} == alone


def test_a_directory_with_other_runs_of_the_same_name_is_refused(tmp_path: Path) -> None:
    run_steps(tmp_path, list(steps(BASE, ARMS, [0], rates=[5.0])), simulate=fake)
    other = list(steps(BASE.with_options({"requests": 90}), ARMS, [0], rates=[5.0]))
    with pytest.raises(SweepMismatch, match="another requests"):
        run_steps(tmp_path, other, simulate=fake)


def test_loads_need_a_knee_and_arms_need_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="there is none"):
        list(steps(BASE, ARMS, [0], loads=[0.9]))
    with pytest.raises(ValueError, match="same name"):
        list(steps(BASE, [ARMS[0], ARMS[0]], [0], rates=[1.0]))


def test_an_empty_directory_has_no_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no runs"):
        load_results(tmp_path)


# Tables


def result(arm: str, seed: int, p99: float, hit: float = 0.4, **hashes: str) -> dict[str, Any]:
    spread = {"mean": p99 / 4, "p50": p99 / 8, "p90": p99 / 2, "p99": p99}
    return {
        "arm": arm,
        "load": 0.9,
        "qps": 30.0,
        "seed": seed,
        "hit_rate": hit,
        "bounds": {"b0": 0.6, "b1": 0.7, "b3": 0.5},
        "efficiency": hit / 0.5,
        "ttft_s": spread,
        "max_wait_s": p99,
        "throughput_rps": 29.0,
        "answered_in_arrival_period": 0.98,
        "hashes": {"prompts": f"p{seed}", "arrivals": f"a{seed}", "pool": "m", **hashes},
    }


def test_rows_are_paired_by_seed_against_the_baseline() -> None:
    runs = [result("old", s, 4.0 * (s + 1), hit=0.4 + s / 100) for s in range(3)]
    runs += [result("new", s, 2.0 * (s + 1), hit=0.45 + s / 100) for s in range(3)]
    new, old = tabulate(runs, baseline="old")
    assert (new.arm, old.arm, new.seeds) == ("new", "old", (0, 1, 2))
    assert new.p99_change is not None
    assert new.hit_gain is not None
    assert new.p99_change == pytest.approx((-0.5, -0.5, -0.5))
    assert new.hit_gain == pytest.approx((0.05, 0.05, 0.05))
    assert old.p99_change is None
    assert old.ttft_p99_s.mean == pytest.approx(8.0)
    text = as_markdown([new, old])
    assert "| -50.0% [-50, -50] |" in text
    assert text.count("\n") == 4
    parsed = list(csv.DictReader(io.StringIO(as_csv([new, old]))))
    assert float(parsed[0]["p99_change"]) == pytest.approx(-0.5)
    assert parsed[1]["p99_change"] == ""


def test_bounds_that_a_run_lacks_are_left_out_of_the_table() -> None:
    runs = [result("old", seed, 4.0) for seed in range(2)]
    assert tabulate(runs)[0].b4 is None
    runs = [run | {"more_bounds": {"b2": 0.47, "b4": 0.66}} for run in runs]
    (row,) = tabulate(runs)
    assert (row.b2, row.b4) == pytest.approx((0.47, 0.66))
    assert "| 60.00% | 70.00% | 47.00% | 50.00% | 66.00% |" in as_markdown([row])
    runs[1]["more_bounds"]["b2"] = None
    assert tabulate(runs)[0].b2 is None


@pytest.mark.parametrize("name", ["prompts", "arrivals", "pool"])
def test_runs_that_did_not_serve_the_same_are_not_put_side_by_side(name: str) -> None:
    runs = [result("old", 0, 4.0), result("new", 0, 2.0, **{name: "other"})]
    with pytest.raises(Incomparable, match=name):
        tabulate(runs)


def test_arms_with_other_seeds_are_not_put_side_by_side() -> None:
    with pytest.raises(Incomparable, match="seeds"):
        tabulate([result("old", 0, 4.0), result("new", 1, 4.0)])
    with pytest.raises(ValueError, match="no arm 'best'"):
        tabulate([result("old", 0, 4.0)], baseline="best")


def test_intervals_are_students() -> None:
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert mean_interval([2.0]) == (2.0, None, None)
    assert not mean_interval([2.0]).excludes_zero
    assert paired_difference([2.0, 3.1], [1.0, 2.0]).mean == pytest.approx(1.05)
    assert paired_change([1.0, 4.0], [2.0, 2.0]).mean == pytest.approx(0.0)
    with pytest.raises(ValueError, match="above 0"):
        paired_change([0.0], [1.0])
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


# The commands


def test_knee_run_and_table_work_together(tmp_path: Path) -> None:
    file, out = tmp_path / "knees.json", tmp_path / "runs"
    shared = ["--requests", "60", "--seeds", "2", "--set", "trace.output_tokens=1"]
    knee = ["sweep", "knee", "--arm", "fcfs", *shared, "--keep", "--file", str(file)]
    done = CliRunner().invoke(main, knee)
    assert done.exit_code == 0, done.output
    (kept,) = json.loads(file.read_text()).values()
    assert kept["arm"] == "fcfs"
    run = ["sweep", "run", "--arm", "fcfs", "--arm", "qas/lru", *shared, "--out", str(out)]
    done = CliRunner().invoke(main, [*run, "--knee", str(kept["qps"]), "--load", "0.9"])
    assert done.exit_code == 0, done.output
    assert "Simulated" in done.output
    assert "Commit: " in done.output
    assert len(list(out.glob("*.json"))) == 4
    table = CliRunner().invoke(main, ["sweep", "table", str(out), "--csv", str(tmp_path / "t.csv")])
    assert table.exit_code == 0, table.output
    assert (tmp_path / "t.csv").read_text().count("\n") == 3
    assert "qas/lru" in table.output
    missing = CliRunner().invoke(main, ["sweep", "run", "--arm", "fcfs", "--out", str(out)])
    assert missing.exit_code == 1
