"""Verdicts of the validation: computed from rows, and only from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.real.cluster import RealArrival
from loadgen.validate.agreement import (
    ReplayedRow,
    SimulatedRow,
    rank_rows,
    simulated_row,
    verdicts,
)
from loadgen.validate.simulation import simulated_hit_rate
from loadgen.validate.trace import validation_arrivals
from loadgen.virtual import Delays
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams

GOOD = ReplayedRow(
    policy="qas",
    retention="lru",
    seed=0,
    requests=100,
    equal=95,
    equal_share=0.95,
    hit_rate=0.3,
    replayed_hit_rate=0.3,
    evicted_pools=2.0,
    replayed_evicted_pools=2.0,
    prefill_batches=20,
    crowded_batches=10,
    chunked=1,
    aborted=1,
    retracted=0,
    decode_steps=1,
    steps=10,
    same_size_steps=10,
    unequal=(),
)


def row(policy: str, *by_seed: tuple[float, float]) -> SimulatedRow:
    return simulated_row((policy, "lru"), by_seed)


def test_everything_at_its_threshold_holds() -> None:
    assert all(verdicts([GOOD], [row("qas", (0.30, 0.309), (0.32, 0.329))], []).values())


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"equal_share": 0.94}, "replayed_cached_tokens_equal"),
        ({"evicted_pools": 1.9}, "evictions_are_twice_the_pool"),
        ({"crowded_batches": 9}, "half_the_prefill_batches_are_shared_by_four"),
        ({"chunked": 0}, "chunked_and_decoded"),
        ({"aborted": 0}, "aborted_in_the_engine"),
        ({"decode_steps": 0}, "chunked_and_decoded"),
    ],
)
def test_one_run_that_falls_short_is_enough(change: dict[str, float], verdict: str) -> None:
    found = verdicts([GOOD, replace(GOOD, **change)], [], [])
    assert [name for name, holds in found.items() if not holds] == [verdict]


def test_a_mean_that_is_more_than_a_point_off_does_not_hold() -> None:
    assert (
        verdicts([GOOD], [row("qas", (0.30, 0.32), (0.30, 0.301))], [])[
            "simulated_hit_rate_within_a_point"
        ]
        is False
    )


def test_arms_are_ranked_only_where_the_real_difference_exceeds_its_interval() -> None:
    low = row("fcfs", (0.20, 0.21), (0.21, 0.20), (0.20, 0.20))
    high = row("qas", (0.30, 0.29), (0.31, 0.30), (0.31, 0.31))
    noisy = row("lpm", (0.10, 0.1), (0.32, 0.1), (0.25, 0.1))
    (found,) = rank_rows([low, high, noisy])
    assert (found.first, found.second) == (("fcfs", "lru"), ("qas", "lru"))
    assert found.agrees
    (wrong,) = rank_rows([low, row("qas", (0.30, 0.1), (0.31, 0.1), (0.31, 0.1))])
    assert not wrong.agrees


def test_the_trace_has_what_it_promises_and_the_same_seed_gives_it_again() -> None:
    arrivals = validation_arrivals(4, 240, 30.0)
    assert arrivals == validation_arrivals(4, 240, 30.0)
    lengths = {a.ticket.skeleton.prompt_tokens for a in arrivals}
    assert lengths == {192, 1368}
    assert 10 <= sum(a.abort_s is not None for a in arrivals) <= 40


def test_virtual_clients_leave_wherever_their_request_is() -> None:
    # A step takes a second: who leaves at 0.5 s is in a batch, in the engine's queue or in the window.
    arrivals = [
        RealArrival(a.ticket.__class__(f"r{n}", a.ticket.skeleton, 0.0, 2), 2, abort_s=abort_s)
        for n, (a, abort_s) in enumerate(
            zip(validation_arrivals(0, 12, 9.0), [None, 0.5, 30.0] * 4, strict=True)
        )
    ]
    params = StepParams(
        pool_tokens=2000, context_length=2000, max_running=3, chunked_prefill_tokens=400
    )
    hit_rate = simulated_hit_rate(
        arrivals,
        policy="fcfs",
        params=params,
        cost=CostModel(base_s=1.0),
        delays=Delays(0.01, 0.01),
        tells_cache=False,
    )
    assert 0 < hit_rate < 1
