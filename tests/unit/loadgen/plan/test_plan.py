from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli import main
from loadgen.plan import (
    Load,
    Machine,
    Plan,
    knee,
    relative_service_rate,
    replicas_for,
    service_rate,
)
from loadgen.plan.inputs import load_of, machine_of, served_trace, simulated_load
from loadgen.simulate import SimSpec, kept_knee
from loadgen.sweep import Arm, find_knee
from loadgen.traces import make_trace
from prism_ray.engine.profile import load_profile

LOAD = Load(prompt_tokens=1000.0, output_tokens=1.0, hit_rate=0.5, variation=0.5)
MACHINE = Machine(prefill_tokens_per_s=20_000.0, step_s=0.01)


def test_the_papers_plateau_is_its_rate_over_its_misses() -> None:
    assert service_rate(26_200, 1029, 0.491) == pytest.approx(50.0, rel=0.001)


def test_theorem_1_is_equation_6_with_all_else_equal() -> None:
    assert relative_service_rate(0.432, 0.491) == pytest.approx(0.568 / 0.509)
    ratio = service_rate(1000, 500, 0.6) / service_rate(800, 400, 0.2)
    assert relative_service_rate(0.2, 0.6, rate=1000 / 800, prompt=500 / 400) == pytest.approx(
        ratio
    )
    assert relative_service_rate(0.0, 0.0, batch=2.0) == 2.0


def test_the_wait_is_that_of_an_m_g_1_queue() -> None:
    """Against Lindley's recursion over drawn arrivals and service times."""
    plan = Plan(LOAD, MACHINE, qps=32.0)
    assert plan.utilization == pytest.approx(0.8)
    rng = random.Random(1)
    wait_s = total_s = 0.0
    count = 200_000
    # Service times of squared variation 0.5: the sum of two exponentials.
    for _ in range(count):
        total_s += wait_s
        service_s = rng.expovariate(2 / plan.service_s) + rng.expovariate(2 / plan.service_s)
        wait_s = max(0.0, wait_s + service_s - rng.expovariate(32.0))
    assert plan.wait_s == pytest.approx(total_s / count, rel=0.08)


def test_near_saturation_a_point_is_worth_the_square_of_what_is_left() -> None:
    """dW/dS goes with rho·(2 - rho)/(1 - rho)²: 33 times as much at 90% utilization as at 50%."""
    far, near = (Plan(LOAD, MACHINE, qps).worth_of_a_point().wait_s for qps in (20.0, 36.0))
    assert far < 0
    assert near / far == pytest.approx((0.9 * 1.1 / 0.1**2) / (0.5 * 1.5 / 0.5**2), rel=0.2)
    assert Plan(LOAD, MACHINE, 20.0).worth_of_a_point().service_rate == pytest.approx(1 / 49)


def test_a_saturated_replica_waits_for_ever() -> None:
    plan = Plan(Load(1000.0, 8.0, 0.5), MACHINE, 60.0)
    assert math.isinf(plan.wait_s)
    assert math.isinf(plan.ttft_percentile_s(99))
    assert math.isinf(plan.decode_s)


def test_decoding_is_what_prefill_leaves_time_for() -> None:
    alone = Plan(Load(1000.0, 11.0, 0.5), MACHINE, 0.0001)
    assert alone.decode_s == pytest.approx(10 * 0.01, rel=0.01)
    busy = Plan(Load(1000.0, 11.0, 0.5), MACHINE, 20.0)
    assert busy.decode_s > alone.decode_s / (1 - 0.5)
    assert Plan(LOAD, MACHINE, 20.0).decode_s == 0.0


def test_the_knee_is_below_saturation_and_rises_with_hits_and_length_of_the_replay() -> None:
    load = Load(1000.0, 16.0, 0.5)
    assert 0 < knee(load, MACHINE) < MACHINE.request_rate(load)
    assert knee(Load(1000.0, 16.0, 0.6), MACHINE) > knee(load, MACHINE)
    assert knee(load, MACHINE, 20_000) > knee(load, MACHINE)
    assert Plan(load, MACHINE, knee(load, MACHINE)).unfinished(2048) == pytest.approx(0.03)


def test_replicas_are_as_few_as_the_slo_allows() -> None:
    count = replicas_for(LOAD, MACHINE, 100.0, 0.5)
    assert Plan(LOAD, MACHINE, 100.0 / count).ttft_percentile_s(99) <= 0.5
    assert Plan(LOAD, MACHINE, 100.0 / (count - 1)).ttft_percentile_s(99) > 0.5
    with pytest.raises(ValueError, match="an idle one takes"):
        replicas_for(LOAD, MACHINE, 1.0, 0.001)


@pytest.mark.parametrize(
    "bad", [(0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (1.0, 1.0, -0.1)]
)
def test_impossible_figures_are_refused(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"above 0|hit rate"):
        service_rate(*bad)
    with pytest.raises(ValueError, match="hit rates"):
        relative_service_rate(0.5, 1.0)


def test_loads_and_machines_come_from_traces_and_profiles() -> None:
    trace = make_trace("zipf_hotspot", 0, 50)
    load = load_of(trace, 0.25)
    assert load.uncached_tokens == pytest.approx(0.75 * load.prompt_tokens)
    profile = load_profile("a800-qwen3-4b")
    machine = machine_of(profile.params(), profile.cost)
    assert machine.effective_tokens_per_s(load_of(trace, 0.491)) == pytest.approx(26_200, rel=0.03)
    assert machine_of(profile.params(), profile.cost, 123.0).prefill_tokens_per_s == 123.0
    zero = load_profile("zero")
    with pytest.raises(ValueError, match="no knee"):
        machine_of(zero.params(), zero.cost)


def test_requests_that_a_replica_would_refuse_are_not_planned_for() -> None:
    spec = SimSpec(trace="programming", requests=60, trace_options={"real": False})
    whole, none = served_trace(spec)
    assert (len(whole.requests), none) == (60, 0)
    lengths = [r.skeleton.prompt_tokens + r.output_tokens for r in whole.requests]
    middle = sorted(lengths)[30]
    trace, refused = served_trace(replace(spec, engine_options={"context_length": middle}))
    assert refused == sum(length > middle for length in lengths) > 0
    assert len(trace.requests) == 60 - refused
    assert load_of(trace, 0.0).prompt_tokens < load_of(whole, 0.0).prompt_tokens
    with pytest.raises(ValueError, match="takes no request of programming"):
        served_trace(replace(spec, engine_options={"context_length": 100}))


def test_the_planned_knee_is_the_simulators_within_a_tenth() -> None:
    """Without decode, where few seeds are enough; docs/simulator.md has the whole comparison."""
    spec = SimSpec(
        policy="fcfs", requests=400, tells_cache=False, trace_options={"output_tokens": 1}
    )
    params, profile = spec.machine()
    machine = machine_of(params, profile.cost)
    planned = knee(simulated_load(spec, machine), machine, spec.requests)
    found = find_knee(spec, [Arm("fcfs", {"policy": "fcfs"})], range(2)).qps
    assert planned == pytest.approx(found, rel=0.10)


RETRIEVAL = Load(prompt_tokens=1029.0, output_tokens=16.0, hit_rate=0.430, variation=0.067)
RETRIEVAL_13B = Load(prompt_tokens=1029.0, output_tokens=16.0, hit_rate=0.379, variation=0.049)
AGENTS = Load(prompt_tokens=4093.0, output_tokens=30.0, hit_rate=0.949, variation=1.555)


@pytest.mark.parametrize(
    ("trace", "profile_name", "load"),
    [
        ("zipf_hotspot", "a800-qwen3-4b", RETRIEVAL),
        ("zipf_hotspot", "a800-llama2-13b", RETRIEVAL_13B),
        ("agent_prefix", "a800-qwen3-4b", AGENTS),
    ],
)
def test_planned_knees_are_within_a_tenth_of_the_kept_ones(
    trace: str, profile_name: str, load: Load
) -> None:
    """Loads as the best peer has them at 0.9 of its planned knee (docs/capacity.md)."""
    profile = load_profile(profile_name)
    planned = knee(load, machine_of(profile.params(), profile.cost))
    assert planned == pytest.approx(kept_knee(trace, profile_name, 1), rel=0.10)


def test_the_command_plans_for_an_slo(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    arguments = ["plan", "--hit-rate", "0.49", "--qps", "100", "--replicas", "3", "--slo", "0.3"]
    done = CliRunner().invoke(main, [*arguments, "--requests", "200", "--json", str(file)])
    assert done.exit_code == 0, done.output
    plan = json.loads(file.read_text())
    assert plan["planned"] is True
    assert plan["utilization"] < 1
    assert plan["replicas_for_slo"]["replicas"] >= 3
    assert "one point of hit rate" in done.output
    flooded = CliRunner().invoke(
        main, ["plan", "--hit-rate", "0", "--qps", "99", "--json", str(file)]
    )
    assert "saturated" in flooded.output
    assert json.loads(file.read_text())["wait_s"] is None
    bad = CliRunner().invoke(main, [*arguments, "--profile", "h100"])
    assert bad.exit_code == 1
    assert "unknown profile" in bad.output
