"""Runs side by side: refused where they did not serve the same, paired where they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.compare.page import write_page
from loadgen.compare.runs import RunDirectory
from loadgen.compare.tables import best_native, by_load, tabulate, told_apart
from loadgen.compare.verdicts import verdicts
from loadgen.sweep.tables import Incomparable

SEEDS = (0, 1, 2)


def run(
    arm: str,
    seed: int,
    *,
    p99: float,
    hit: float = 0.3,
    load: float = 0.9,
    predicted: float | None = None,
    **changes: Any,
) -> dict[str, Any]:
    p99 = p99 * (1 + 0.01 * seed)
    ttft = {"mean": p99 / 4, "p50": p99 / 5, "p90": p99 / 2, "p99": p99}
    made: dict[str, Any] = {
        "arm": {"name": arm, "native": arm.startswith("sglang-")},
        "load": load,
        "qps": 5 * load,
        "seed": seed,
        "hashes": {"prompts": f"p{seed}", "arrivals": f"a{seed}-{load}", "pool": "x"},
        "hit_rate": hit + 0.001 * seed,
        "ttft_s": ttft,
        "throughput_rps": 4.0,
        "answered_in_arrival_period": 0.98,
        "machine_load": {"cores": 2, "own_cores": 1.5, "others_cores": 0.25},
        "limits": {"pool_tokens": 5000, "max_running": 8},
        "git_commit": "0" * 40,
        "rows": {"ttft_s": [0.1, 0.2]},
    }
    if predicted is not None:
        told = {name: value * predicted / p99 for name, value in ttft.items()}
        made["predicted"] = {"hit_rate": hit, "ttft_s": told}
    return made | changes


def three(arm: str, **figures: Any) -> list[dict[str, Any]]:
    return [run(arm, seed, **figures) for seed in SEEDS]


@pytest.mark.parametrize("name", ["prompts", "arrivals", "pool"])
def test_runs_that_did_not_serve_the_same_are_refused(name: str) -> None:
    other = run("prism", 1, p99=1.0)
    other["hashes"] = {**other["hashes"], name: "another"}
    results = [run("sglang-fcfs", 0, p99=2.0), run("sglang-fcfs", 1, p99=2.0), other]
    with pytest.raises(
        Incomparable, match=rf"load 0\.9, seed 1, 'prism' .* differ in their {name}"
    ):
        by_load(results)


def test_runs_at_another_rate_are_refused() -> None:
    with pytest.raises(Incomparable, match="rate"):
        by_load([run("sglang-fcfs", 0, p99=2.0), run("prism", 0, p99=1.0, qps=4.0)])


def test_an_arm_of_fewer_seeds_shortens_only_the_pairs_that_it_is_in() -> None:
    results = [
        *three("sglang-fcfs", p99=2.0),
        *three("k-lpm", p99=3.0)[:1],
        *three("prism", p99=1.0),
    ]
    rows = {row.arm: row for row in tabulate(results, [])}
    assert {arm: row.seeds for arm, row in rows.items()} == {
        "sglang-fcfs": SEEDS,
        "k-lpm": (0,),
        "prism": SEEDS,
    }
    assert rows["sglang-fcfs"].ttft_p99_s.mean == pytest.approx(2.02)
    assert rows["prism"].paired_seeds == SEEDS
    assert rows["prism"].p99_change is not None
    assert rows["prism"].p99_change.excludes_zero
    assert rows["k-lpm"].paired_seeds == (0,)
    assert rows["k-lpm"].p99_change == (pytest.approx(0.5), None, None)


def test_a_ratio_is_over_the_seeds_that_both_arms_have() -> None:
    slow = [run("prism", seed, p99=p99) for seed, p99 in ((1, 1.0), (2, 1.0), (3, 50.0))]
    rows = {row.arm: row for row in tabulate([*three("sglang-fcfs", p99=2.0), *slow], [])}
    assert rows["prism"].seeds == (1, 2, 3)
    assert rows["prism"].paired_seeds == (1, 2)
    assert rows["prism"].p99_change is not None
    assert rows["prism"].p99_change.mean == pytest.approx(-0.5)


def test_arms_that_share_no_seed_have_no_ratio() -> None:
    others = [run("prism", seed, p99=1.0) for seed in (7, 8)]
    rows = {row.arm: row for row in tabulate([*three("sglang-fcfs", p99=2.0), *others], [])}
    assert rows["prism"].seeds == (7, 8)
    assert rows["prism"].p99_change is None
    assert verdicts([*three("sglang-fcfs", p99=2.0), *others]) == []


def test_a_page_says_which_arm_has_which_seeds_where_they_differ(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = [*three("sglang-fcfs", p99=2.0), *three("prism", p99=1.0)[:2]]
    for result in results:
        RunDirectory(tmp_path).write(
            f"runs/{result['arm']['name']}.seed{result['seed']}.json", result
        )
    write_page(RunDirectory(tmp_path))
    page = (tmp_path / "index.md").read_text()
    assert "- at 0.9: `sglang-fcfs` 0, 1, 2; `prism` 0, 1" in page
    asked = next(line for line in page.splitlines() if "prism beats sglang-fcfs" in line)
    assert asked.split("|")[3].strip() == "2"
    RunDirectory(tmp_path).write("runs/prism.seed2.json", run("prism", 2, p99=1.0))
    write_page(RunDirectory(tmp_path))
    assert "same seeds**" not in (tmp_path / "index.md").read_text()


def test_a_page_warns_of_runs_of_unlike_machines_or_versions(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    directory = RunDirectory(tmp_path)
    for arm in ("sglang-fcfs", "prism"):
        for seed in (0, 1):
            made = {"boot": "aa", "sglang": "0.5.23"}
            result = run(arm, seed, p99=1.0, made_on=made)
            directory.write(f"runs/{arm}.seed{seed}.json", result)
    write_page(directory)
    assert "made on the same" not in (tmp_path / "index.md").read_text()
    other = run("prism", 1, p99=1.0, made_on={"boot": "aa", "sglang": "0.6.0"})
    directory.write("runs/prism.seed1.json", other)
    write_page(directory)
    assert "- sglang: 0.5.23 (seeds 0, 1); 0.6.0 (seeds 1)" in (tmp_path / "index.md").read_text()


def test_the_best_native_arm_of_unlike_seeds_is_told_by_the_seeds_that_both_have() -> None:
    """Seed 0 is the easy one: alone it would make the slower arm look the best."""
    harder = [run("sglang-fcfs", seed, p99=2.0 if seed else 1.0) for seed in SEEDS]
    arms = by_load([*harder, run("sglang-lpm", 0, p99=1.1)])[0.9]
    assert best_native(arms) == "sglang-fcfs"


def test_the_best_native_arm_is_the_one_of_the_lowest_p99() -> None:
    results = [
        *three("sglang-fcfs", p99=2.0),
        *three("sglang-hrrn", p99=1.5),
        *three("prism", p99=1.0),
    ]
    arms = by_load(results)[0.9]
    assert best_native(arms) == "sglang-hrrn"
    rows = {row.arm: row for row in tabulate(results, ["prism", "sglang-fcfs", "sglang-hrrn"])}
    assert list(rows) == ["prism", "sglang-fcfs", "sglang-hrrn"]
    assert rows["sglang-hrrn"].p99_change is None
    change = rows["prism"].p99_change
    assert change is not None
    assert change.mean == pytest.approx(1 / 1.5 - 1)
    assert change.excludes_zero


def test_a_server_behind_contextpilot_is_not_sglangs_own_policy() -> None:
    piloted = three("sglang-fcfs+contextpilot", p99=0.5)
    for result in piloted:
        result["arm"]["reorders"] = True
    arms = by_load([*three("sglang-fcfs", p99=2.0), *piloted])[0.9]
    assert best_native(arms) == "sglang-fcfs"


def test_a_comparison_without_native_arms_has_no_changes() -> None:
    rows = tabulate([*three("prism", p99=1.0), *three("k-lpm", p99=2.0)], [])
    assert all(row.p99_change is None for row in rows)


def test_pairs_are_ranked_only_where_their_interval_excludes_0() -> None:
    noisy = [run("k-lpm", seed, p99=2.0 + (seed - 1) * 0.9, predicted=1.9) for seed in SEEDS]
    results = [
        *three("sglang-fcfs", p99=2.0, predicted=2.2),
        *three("prism", p99=1.0, predicted=0.9),
        *noisy,
    ]
    p99 = [pair for pair in told_apart(results) if pair.measure == "P99 TTFT"]
    assert [(pair.first, pair.second) for pair in p99] == [("sglang-fcfs", "prism")]
    assert p99[0].agrees


def test_a_simulator_that_orders_two_arms_the_other_way_does_not_agree() -> None:
    results = [
        *three("sglang-fcfs", p99=2.0, predicted=0.8),
        *three("prism", p99=1.0, predicted=0.9),
    ]
    pairs = told_apart(results)
    assert {pair.measure for pair in pairs} == {"mean TTFT", "P99 TTFT"}
    assert not any(pair.agrees for pair in pairs)


def test_runs_without_a_prediction_are_not_ranked() -> None:
    assert told_apart([*three("sglang-fcfs", p99=2.0), *three("prism", p99=1.0)]) == []


def test_verdicts_follow_the_figures() -> None:
    results = [
        *three("sglang-fcfs", p99=2.0, hit=0.3, predicted=2.0),
        *three("qas+dart", p99=1.6, hit=0.35, predicted=1.5),
        *three("prism", p99=1.0, hit=0.4, predicted=1.0),
    ]
    assert all(verdict.met for verdict in verdicts(results))
    assert len(verdicts(results)) == 5
    unpredicted = [{k: v for k, v in r.items() if k != "predicted"} for r in results]
    assert len(verdicts(unpredicted)) == 4
    slower = [r | {"ttft_s": {**r["ttft_s"], "p99": 1.7}} for r in results[6:]]
    told = {v.question: v for v in verdicts([*results[:6], *slower])}
    p99 = next(v for q, v in told.items() if q.startswith("P99 TTFT of prism"))
    assert not p99.met
    assert p99.answer.startswith("0.84 [")
    beaten = next(v for q, v in told.items() if q.startswith("prism beats qas+dart"))
    assert not beaten.met
    hit = next(v for q, v in told.items() if q.startswith("hit rate of prism"))
    assert hit.met
