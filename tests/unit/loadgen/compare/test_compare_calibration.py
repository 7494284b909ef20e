"""What is learnt before arms are compared: where the engine's time goes, and the knee by real runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadgen.compare.arms import ARMS, Arm
from loadgen.compare.calibration import Recorded, find_knee, where_time_goes
from loadgen.compare.runs import Served
from loadgen.compare.session import Outcome
from loadgen.compare.workload import Workload
from loadgen.real.rows import RealRow
from loadgen.real.session import RealRun
from loadgen.traces import Trace
from prism_ray.engine.base import EngineInfo
from prism_ray.engine.sglang_steps import BatchEntry, StepRecord


def step(prefill: bool, begin_s: float, end_s: float, tokens: int = 100) -> StepRecord:
    return StepRecord(prefill, begin_s, end_s, (BatchEntry("a", 0, tokens),), (), (), ())


def test_the_engines_time_is_prefill_decode_between_steps_and_idle() -> None:
    steps = (
        step(True, 100.0, 101.0),
        step(False, 101.002, 101.5),  # formed in between: 2 ms of scheduling
        step(True, 103.0, 103.5, 50),
    )
    row = RealRow("a", 0.0, 200, finished_s=4.0, cached_tokens=50)
    run = RealRun((row,), (), 0, {}, 4.0, 100.0)
    info = EngineInfo("m", 5000, 4096, 1024, 1024, 1, 8)
    told = where_time_goes(Recorded(info, steps, run))
    assert told["prefill"] == pytest.approx(1.5 / 4)
    assert told["decode"] == pytest.approx(0.498 / 4)
    assert told["scheduling"] == pytest.approx(0.002 / 4)
    assert told["idle"] == pytest.approx(1 - 2.0 / 4)
    assert told["prefilled_tokens_per_s"] == pytest.approx(100)
    assert told["hit_rate"] == 0.25


class OneServer:
    """Serves one request after the other, 0.2 s each for fcfs and 0.1 s for hrrn."""

    workload = Workload("zipf_hotspot", {}, 200)

    def serve(self, arm: Arm, trace: Trace, times_s: Sequence[float]) -> Outcome:
        service_s = {"fcfs": 0.2, "hrrn": 0.1}[arm.policy]
        free_s, served = 0.0, []
        for at_s in times_s:
            free_s = max(free_s, at_s) + service_s
            served.append(Served(at_s, 100, 30, free_s, free_s, 0.0))
        return Outcome(tuple(served), {}, {}, {})


def test_the_knee_is_a_share_of_the_best_native_arms_throughput_and_keeps_every_run() -> None:
    arms = [ARMS["sglang-fcfs"], ARMS["sglang-hrrn"]]
    told: list[str] = []
    found = find_knee(OneServer(), arms, told.append)  # type: ignore[arg-type]
    assert found["arm"] == "sglang-hrrn"
    assert found["qps"] == pytest.approx(0.97 * 10, rel=0.01)
    assert [t["arm"] for t in found["tried"]] == ["sglang-fcfs", "sglang-hrrn"]
    assert found["tried"][0]["throughput_rps"] == pytest.approx(5.0, rel=0.01)
    assert len(told) == 2
