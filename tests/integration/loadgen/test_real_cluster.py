"""The real engine under the product's dispatcher, and the model's replay of what it did."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
import pytest_asyncio

from loadgen.real.answers import first_difference
from loadgen.real.cluster import RealArrival, StartedEngine
from loadgen.real.engines import EngineSpec, running, token_ids_for
from loadgen.real.fit import fit_cost
from loadgen.real.profile import as_profile, calibrate
from loadgen.real.session import RealRun, run_policy
from loadgen.real.steps_file import StepsFile, steps_file
from loadgen.real.token_ids import AtomTokens
from loadgen.simulate import SimSpec
from loadgen.simulate import run as simulate_run
from loadgen.validate.agreement import replayed_row
from loadgen.validate.recording import Recording
from loadgen.validate.simulation import params_of
from loadgen.validate.trace import validation_arrivals
from prism_ray.model import Outcome

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

_RUNS = count()
REQUESTS = 60
RATE = 60.0


class Bench(NamedTuple):
    engine: StartedEngine
    steps: StepsFile
    tokens: AtomTokens

    async def run(self, policy: str, arrivals: list[RealArrival]) -> RealRun:
        self.steps.take()
        name = f"{policy}-{next(_RUNS)}"
        return await run_policy(
            self.engine, arrivals, self.tokens, policy=policy, run_name=name, gaps=True
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(random_tiny: Path) -> AsyncIterator[Bench]:
    with steps_file() as steps:
        async with running(EngineSpec(random_tiny, 3000, 512), steps.environment) as engine:
            yield Bench(engine, steps, token_ids_for(random_tiny))


@pytest.mark.parametrize("policy", ["fcfs", "qas"])
async def test_the_model_with_the_real_batches_caches_what_the_real_engine_cached(
    bench: Bench, policy: str
) -> None:
    run = await bench.run(policy, validation_arrivals(0, REQUESTS, RATE))
    recording = Recording(policy, "lru", 0, run, bench.steps.take())
    row = replayed_row(recording, params_of(bench.engine.info, "lru"), "real")
    assert row.requests > REQUESTS // 2
    assert row.unequal == ()
    assert row.same_size_steps == row.steps
    assert row.evicted_pools > 1
    assert row.evicted_pools == row.replayed_evicted_pools
    assert row.b3 is not None
    assert 0 < row.hit_rate <= row.b3 < 1
    assert fit_cost(recording.steps).cost.new_token_s > 0


async def test_a_profile_of_the_real_engine_tells_its_steps_and_can_be_simulated(
    bench: Bench, tmp_path: Path
) -> None:
    thrice = [
        await calibrate(bench.engine, bench.steps, bench.tokens, output_tokens=3, rounds=2)
        for _ in range(3)
    ]
    measured = thrice[-1]
    assert measured.fit.cost.new_token_s > 0
    assert measured.fit.explained > 0
    assert min(r.steps for r in measured.residuals.values()) > 20
    assert measured.residuals.keys() == {"prefill", "decode"}
    for kind in measured.residuals:
        # Of steps that were not fitted. A stall of the machine is in one of the three sums.
        told = median(each.residuals[kind].total for each in thrice)
        assert abs(told) < 0.25, kind
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(as_profile("tiny", "cpu", measured).to_json()))
    ran = simulate_run(SimSpec(profile=str(file), policy="qas", requests=30, qps=5.0))
    assert ran.params.pool_tokens == bench.engine.info.pool_tokens
    assert ran.cost == measured.fit.cost


async def test_every_request_ends_once_and_says_when_what_happened(bench: Bench) -> None:
    run = await bench.run("qas", validation_arrivals(1, REQUESTS, RATE))
    assert len(run.rows) == REQUESTS
    for row in run.rows:
        assert row.outcome in (Outcome.FINISHED, Outcome.ABORTED), row
        if row.outcome is Outcome.FINISHED:
            assert row.decided_s is not None
            assert row.prefill_s is not None
            assert row.first_token_s is not None
            assert row.finished_s is not None
            assert row.arrival_s <= row.decided_s <= row.prefill_s
            assert row.prefill_s < row.first_token_s <= row.finished_s
            assert len(row.answer.token_ids) == len(row.answer.gaps) == row.output_tokens


async def test_answers_do_not_depend_on_who_shares_the_batch(bench: Bench) -> None:
    slow, fast = (
        [a._replace(abort_s=None) for a in validation_arrivals(2, 30, rate)]
        for rate in (RATE / 2, 10 * RATE)
    )
    one = await bench.run("fcfs", slow)
    other = await bench.run("fcfs", fast)
    answers = {row.request_id: row.answer for row in other.rows}
    assert len({row.answer.token_ids for row in one.rows}) > 1
    for row in one.rows:
        difference = first_difference(row.answer, answers[row.request_id])
        assert difference is None or difference.gap < 1e-3


async def test_a_client_that_leaves_ends_its_request_in_the_engine(bench: Bench) -> None:
    (arrival,) = validation_arrivals(3, 1, RATE)
    long = replace(arrival.ticket, arrival_s=0.0, max_new_tokens=900)
    run = await bench.run("fcfs", [RealArrival(long, 900, abort_s=0.5)])
    (row,) = run.rows
    assert row.outcome is Outcome.ABORTED
    assert 0 < row.output_tokens < 900
    load = await bench.engine.engine.load()
    assert (load.running, load.waiting) == (0, 0)
