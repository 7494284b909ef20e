"""SGLang's own server and ours side by side: a tiny trace through both, then the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.compare.arms import arms_of
from loadgen.compare.command import Plan, finish, measure
from loadgen.compare.machine import Machine
from loadgen.compare.runs import RunDirectory
from loadgen.compare.workload import Workload

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

WORKLOAD = Workload("zipf_hotspot", {"segment_tokens": 24, "system_tokens": 48}, 30)
ARGUMENTS = {
    "chunked_prefill_size": 512,
    "max_running_requests": 8,
    "context_length": 2048,
    "log_level": "error",
}


def test_two_arms_serve_the_same_and_stand_on_one_page(random_tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    machine = Machine("tiny", str(random_tiny), True, ARGUMENTS, True, profile="zero")
    directory = RunDirectory(tmp_path)
    arms = arms_of(["sglang-lpm", "qas+dart"])
    measure(
        Plan(machine, WORKLOAD, directory, arms, arms[:1], (1.0,), (0,), None, float("inf")),
        knee_qps=30.0,
    )
    native, ours = sorted(directory.runs(), key=lambda run: not run["arm"]["native"])
    assert native["hashes"] == ours["hashes"]
    assert native["limits"] == ours["limits"]
    assert native["made_on"] == ours["made_on"]
    assert native["made_on"]["context_length"] == ARGUMENTS["context_length"]
    assert native["prompt_tokens"] == ours["prompt_tokens"]
    assert native["requests"] == ours["requests"] == WORKLOAD.requests
    for run in (native, ours):
        assert 0 < run["hit_rate"] < 1
        assert all(0 < ttft < 60 for ttft in run["rows"]["ttft_s"])
        assert run["machine_load"]["own_cores"] > 0
    assert ours["reordered_requests"] > 0
    finish(directory)
    page = (tmp_path / "index.md").read_text()
    assert "`sglang-lpm`" in page
    assert "`qas+dart`" in page
