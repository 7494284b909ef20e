"""The floor of latency: nothing that is simulated lies below it, and little load comes close."""

from __future__ import annotations

import math

import pytest

from loadgen.bounds import latency_floor
from loadgen.simulate import SimSpec, simulate
from prism_ray.engine.cost import CostModel

COST = CostModel(base_s=0.004, new_token_s=3e-5, decode_request_s=2e-5, context_token_s=7e-8)


def test_without_decoding_it_is_the_prefill_of_what_is_not_cached() -> None:
    floor = latency_floor([1_000, 3_000], [1, 1], 0.5, 1.0, COST)
    assert floor.mean_s == pytest.approx(0.004 + 1_000 * 3e-5)
    assert floor.prefill_share == pytest.approx(0.03)
    assert floor.decoding == 0


def test_decoding_takes_longer_the_more_is_decoded_together() -> None:
    floors = [latency_floor([4_000], [200], 0.95, rps, COST) for rps in (0.1, 4.0, 8.0)]
    alone, some, many = (floor.mean_s for floor in floors)
    assert alone < some < many
    assert alone == pytest.approx(0.004 + 0.006 + 199 * (0.004 + 2e-5 + 7e-8 * 4_100), rel=0.02)
    for floor in floors[1:]:
        # Little's law: so many are decoded as come in the time that an answer takes.
        rps = 4.0 if floor is floors[1] else 8.0
        answer_s = floor.mean_s - 0.004 - 200 * 3e-5
        assert floor.decoding == pytest.approx(rps * answer_s, rel=1e-6)


def test_a_rate_that_cannot_be_served_has_no_floor() -> None:
    assert math.isinf(latency_floor([10_000], [1], 0.0, 10.0, COST).mean_s)
    assert math.isinf(latency_floor([4_000], [200], 1.0, 100.0, COST).mean_s)


def test_lengths_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="at least one"):
        latency_floor([], [], 0.0, 1.0, COST)
    with pytest.raises(ValueError, match="as many"):
        latency_floor([1], [1, 2], 0.0, 1.0, COST)


@pytest.mark.parametrize(("qps", "within"), [(2.0, 1.3), (25.0, 10.0)])
def test_no_run_is_below_it_and_one_with_little_load_is_close(qps: float, within: float) -> None:
    spec = SimSpec(
        trace="toolbench", requests=150, qps=qps, trace_options={"real": False, "zipf": 1.1}
    )
    run = simulate(spec)
    for figure in ("mean", "p99"):
        floor, reached = run["latency_floor_s"][figure], run["latency_s"][figure]  # type: ignore[index]
        assert floor <= reached <= within * floor
