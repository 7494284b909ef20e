"""Comparisons written down in a file: what they ask for, and the table of latencies."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli import main
from loadgen.simulate import BadSpec
from loadgen.sweep.latencies import latency_markdown, latency_rows
from loadgen.sweep.spec_file import read_comparisons

SPECS = Path(__file__).resolve().parents[4] / "loadgen" / "sweep" / "specs"
SMALL = """
requests_per_replica: 15
seeds: [3, 4]
loads: [0.5, 0.9]
baseline: plain
arms:
  plain: fcfs placement=round-robin
  ours: qas placement=e2+
  other: fcfs placement=cache-aware
runs:
  - {trace: zipf_hotspot, replicas: 2, knee: 60, arms: [plain, ours]}
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_run_has_every_arm_at_every_load_and_seed(tmp_path: Path) -> None:
    (found,) = read_comparisons(written(tmp_path, SMALL))
    assert (found.name, found.baseline) == ("zipf_hotspot-x2", "plain")
    assert len(found.todo) == 2 * 2 * 2
    assert {step.arm for step in found.todo} == {"plain", "ours"}
    assert {step.spec.qps for step in found.todo} == {30.0, 54.0}
    assert {step.spec.requests for step in found.todo} == {30}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("arms: [plain, ours]", "arms: [nobody]"),
        ("knee: 60", "nee: 60"),
        ("baseline: plain", "base: plain"),
        ("seeds: [3, 4]", "seeds: []"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: str, said: str) -> None:
    with pytest.raises(BadSpec, match=r"nobody|nee|base|seeds"):
        read_comparisons(written(tmp_path, SMALL.replace(wrong, said)))


@pytest.mark.parametrize("file", sorted(SPECS.glob("*.yaml")), ids=lambda f: f.stem)
def test_the_files_that_are_here_can_be_run(file: Path) -> None:
    comparisons = read_comparisons(file)
    assert len({c.name for c in comparisons}) == len(comparisons)
    for comparison in comparisons:
        assert comparison.todo
        assert comparison.baseline in {step.arm for step in comparison.todo}
        assert len({step.file_name for step in comparison.todo}) == len(comparison.todo)


def test_a_file_is_run_resumed_and_shown(tmp_path: Path) -> None:
    file, out = written(tmp_path, SMALL), tmp_path / "runs"
    command = ["sweep", "file", str(file), "--out", str(out), "--load", "0.9"]
    stopped = CliRunner().invoke(main, [*command, "--seconds", "0"])
    assert stopped.exit_code == 1
    assert "go on with the same command" in stopped.output
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert len(list((out / "zipf_hotspot-x2").glob("*.json"))) == 4
    assert "simulated, against plain" in done.output
    again = CliRunner().invoke(main, command)
    assert again.output == done.output
    one = CliRunner().invoke(main, [*command, "--arm", "plain"])
    assert "| ours |" in done.output
    assert "| plain |" in one.output
    assert "| ours |" not in one.output


def result(arm: str, seed: int, mean: float, p99: float) -> dict[str, object]:
    return {
        "arm": arm,
        "seed": seed,
        "qps": 10.0,
        "load": 0.9,
        "hashes": {"prompts": "p", "arrivals": "a", "pool": "m"},
        "hit_rate": 0.5,
        "efficiency": 0.9,
        "answered_in_arrival_period": 1.0,
        "latency_s": {"mean": mean, "p99": p99},
        "ttft_s": {"mean": mean / 2, "p99": p99 / 2},
        "latency_floor_s": {"mean": 0.1, "p99": 0.2},
    }


def test_how_many_times_shorter_is_paired_by_seed() -> None:
    runs = [
        result("plain", 0, 4.0, 9.0),
        result("ours", 0, 2.0, 3.0),
        result("plain", 1, 8.0, 27.0),
        result("ours", 1, 4.0, 9.0),
    ]
    plain, ours = latency_rows(runs, "plain")
    assert plain.times_latency is None
    assert ours.times_latency is not None
    assert ours.times_latency["mean"] == pytest.approx((2.0, 2.0, 2.0))
    assert ours.times_latency["p99"] == pytest.approx((3.0, 3.0, 3.0))
    assert ours.latency_s == {"mean": 3.0, "p99": 6.0}
    table = latency_markdown([plain, ours])
    assert "| 2.00 [2.00, 2.00] | 3.00 [3.00, 3.00] |" in table
    with pytest.raises(ValueError, match="no arm 'nobody'"):
        latency_rows(runs, "nobody")
