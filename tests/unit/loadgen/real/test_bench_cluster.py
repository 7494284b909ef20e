"""What ``bench cluster`` makes of runs: rows by replica, seeds paired, ratios with their intervals."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadgen.bench.cluster import REFERENCE, Run, cluster, table
from loadgen.bench.cluster_settings import ARMS, DEFAULT_ARMS, SETTINGS
from loadgen.real.cluster import RealArrival, Submission
from loadgen.real.rows import RealRow
from loadgen.real.session import RealRun
from prism_ray.model import NO_GAP, Decision, Lane, Segment, Skeleton, Ticket
from prism_ray.placement import make_placement


def run(arm: str, seed: int, cached: int, ttft_s: float) -> Run:
    rows = tuple(
        RealRow(
            f"r{n}",
            1.0,
            100,
            replica=f"replica-{n % 2}",
            first_token_s=1.0 + ttft_s,
            finished_s=2.0 + ttft_s,
            cached_tokens=cached + n,
        )
        for n in range(3)
    )
    return Run(SETTINGS["hot-set"], arm, seed, 5_000, RealRun(rows, (), 700, {}, 9.0, 0.0), 3.5)


def rows(*runs: Run) -> list[dict[str, Any]]:
    return [each.row() for each in runs]


def test_a_row_says_what_each_replica_got_and_computed() -> None:
    (row,) = rows(run("e2", 1, 30, 0.5))
    assert row["requests_by_replica"] == {"replica-0": 2, "replica-1": 1}
    assert row["uncached_tokens_by_replica"] == {"replica-0": 70 + 68, "replica-1": 69}
    assert row["hit_rate"] == pytest.approx(0.31)
    assert row["ttft_s"]["p99"] == pytest.approx(0.5)
    assert row["latency_s"]["mean"] == pytest.approx(1.5)
    assert (row["arm"], row["placement"], row["seed"], row["machine_load"]) == ("e2", "e2", 1, 3.5)
    assert json.loads(json.dumps(row)) == row


def test_the_table_pairs_seeds_and_gives_ratios_an_interval() -> None:
    ratios = [0.5, 0.6, 0.7]
    runs = [run(REFERENCE, seed, 20 + seed, 1.0 + seed) for seed in range(3)]
    runs += [run("e2", seed, 23 + seed, (1.0 + seed) * ratios[seed]) for seed in range(3)]
    _, reference, e2 = table(rows(*runs)).splitlines()
    assert "+3.00 ± 0.00" in e2
    mean = exp(sum(map(log, ratios)) / 3)
    assert f"{mean:.2f} (0.39 to 0.90)" in e2
    assert "±" not in reference


def test_one_seed_alone_has_no_interval_worth_the_name() -> None:
    text = table(rows(run(REFERENCE, 0, 20, 1.0), run("e2", 0, 20, 0.5)))
    assert "± inf" in text
    assert "0.50 (0.00 to" in text


def test_arms_are_placements_that_there_are_and_the_reference_is_among_them() -> None:
    assert REFERENCE in DEFAULT_ARMS
    for arm in ARMS.values():
        make_placement(arm.placement, arm.options)
    assert set(DEFAULT_ARMS) <= set(ARMS)


@pytest.mark.parametrize("name", ["documents", "hot-set"])
def test_every_arm_of_a_seed_gets_the_same_requests(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.arrivals(1) == setting.arrivals(1) != setting.arrivals(2)


class TestAgain:
    def rows(self, path: Path, rate: float) -> None:
        setting = SETTINGS["hot-set"]
        row = run("e2", 0, 30, 0.5).row()
        row |= {
            "rate": rate,
            "requests": setting.requests,
            "pool_tokens": setting.pool_tokens((0,)),
        }
        path.write_text(json.dumps([row]))

    def call(self, path: Path, *more: str) -> Result:
        asked = ["--json", str(path), "--setting", "hot-set", "--seed", "0", "--arm", "e2", *more]
        return CliRunner().invoke(cluster, asked)

    def test_what_is_there_is_not_run_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("loadgen.bench.cluster.random_model", lambda _: tmp_path)
        path = tmp_path / "rows.json"
        self.rows(path, SETTINGS["hot-set"].rate)
        done = self.call(path)
        assert done.exit_code == 0, done.output
        assert "31.00%" in done.output

    def test_rows_of_another_rate_are_not_mixed_in(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.json"
        self.rows(path, 99.0)
        done = self.call(path)
        assert done.exit_code == 1
        assert "another setting" in done.output


def test_a_row_has_the_bounds_of_what_was_admitted_and_the_table_their_means() -> None:
    given = run("e2", 1, 30, 0.5)
    shared = Segment(b"d", 80, run=0)
    skeleton = Skeleton(None, (shared, Segment(b"e", 10, run=0)), (NO_GAP, NO_GAP), 10)
    submissions = tuple(
        Submission(
            row.request_id,
            RealArrival(Ticket(row.request_id, skeleton, 1.0, max_new_tokens=2), 2),
            Decision(row.request_id, 0, "e", "replica-0", 1, 0, (0, 1), Lane.HOT, 0.0, 0),
            None,
        )
        for row in given.run.rows
    )
    for row in given.run.rows:
        row.order = (0, 1)
    (row,) = rows(replace(given, run=replace(given.run, submissions=submissions)))
    assert row["bounds"] == pytest.approx({"b0": 180 / 300, "b1": 180 / 300, "b4": 180 / 300})
    assert table([row]).splitlines()[1].endswith("B0 60.0%  B1 60.0%  B4 60.0%")
    older = {name: value for name, value in row.items() if name != "bounds"}
    assert "B0" not in table([row, older])


def test_in_virtual_time_placements_that_know_prefixes_find_more_of_documents() -> None:
    asked = ["--seed", "0", "--arm", REFERENCE, "--arm", "cache-aware", "--arm", "e2"]
    done = CliRunner().invoke(cluster, [*asked, "--simulated", "0.03", "0.001"])
    assert done.exit_code == 0, done.output
    said, _, *lines = done.output.splitlines()
    assert all("B1 " in line and "B4 " in line for line in lines)
    assert said.startswith("simulated: 0.03 s a step")
    hits = {line.split()[0]: float(line.split()[1].rstrip("%")) for line in lines}
    assert hits["e2"] > hits[REFERENCE] + 5
    assert hits["cache-aware"] > hits[REFERENCE] + 5
