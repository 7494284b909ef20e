"""Costs fitted to steps: found again where they are exact, never negative."""

from __future__ import annotations

import random

import pytest

from loadgen.real.fit import Step, durations_s, fit_cost, held_out_residuals, steps_taken
from prism_ray.engine.cost import CostModel
from prism_ray.engine.sglang_steps import BatchEntry, StepRecord

COST = CostModel(0.004, 3e-4, 5e-4, 2e-6)


def steps(cost: CostModel, count: int = 60, pause_s: float = 1.0) -> list[StepRecord]:
    rng, now_s, made = random.Random(1), 10.0, []
    for number in range(count):
        prefill = number % 3 == 0
        width = rng.randrange(1, 200) if prefill else 1
        starts = [rng.randrange(1000) for _ in range(rng.randrange(1, 9))]
        entries = tuple(BatchEntry(f"r{start}", start, start + width) for start in starts)
        record = StepRecord(prefill, now_s, now_s, entries, (), (), ())
        seconds = cost.step_s(record.new_tokens, record.decode_requests, record.context_tokens)
        made.append(StepRecord(prefill, now_s, now_s + seconds, entries, (), (), ()))
        now_s += seconds + pause_s
    return made


def test_exact_steps_give_the_cost_back() -> None:
    fit = fit_cost(steps(COST))
    assert fit.cost.base_s == pytest.approx(COST.base_s)
    assert fit.cost.new_token_s == pytest.approx(COST.new_token_s)
    assert fit.cost.decode_request_s == pytest.approx(COST.decode_request_s)
    assert fit.cost.context_token_s == pytest.approx(COST.context_token_s)
    assert fit.explained == pytest.approx(1.0)
    assert fit.total_error == pytest.approx(0.0, abs=1e-9)


def test_no_cost_is_negative() -> None:
    # Longer contexts in shorter steps: the best straight line would fall.
    made = [
        StepRecord(
            False, t, t + 0.01 - 1e-6 * t, (BatchEntry("r", 100 * t, 100 * t + 1),), (), (), ()
        )
        for t in range(1, 20)
    ]
    assert fit_cost(made).cost.context_token_s == 0


def test_forming_a_batch_right_after_another_is_part_of_its_step() -> None:
    one, two = steps(COST, 2, pause_s=0.002)
    assert durations_s([one, two])[1] == pytest.approx(two.end_s - one.end_s)
    one, two = steps(COST, 2, pause_s=0.5)
    assert durations_s([one, two])[1] == pytest.approx(two.end_s - two.begin_s)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="3 steps are too few"):
        fit_cost(steps(COST, 3))


def test_steps_that_were_not_fitted_are_told_by_those_that_were() -> None:
    found = held_out_residuals(steps_taken(steps(COST)))
    assert {kind: r.steps for kind, r in found.items()} == {"prefill": 20, "decode": 40}
    for residuals in found.values():
        assert residuals.p90 == pytest.approx(0.0, abs=1e-9)
        assert residuals.total == pytest.approx(0.0, abs=1e-9)


def test_kinds_that_take_turns_are_in_both_halves() -> None:
    taken = steps_taken(steps(COST))
    prefills, decodes = (
        [step for step in taken if step.prefill],
        [step for step in taken if not step.prefill],
    )
    in_turns = [step for pair in zip(prefills, decodes, strict=False) for step in pair]
    for residuals in held_out_residuals(in_turns).values():
        assert residuals.p90 == pytest.approx(0.0, abs=1e-9)


def test_a_half_that_costs_twice_as_much_shows_in_the_residuals_though_each_half_fits_itself() -> (
    None
):
    taken = steps_taken(steps(COST, 80))
    seen = {True: 0, False: 0}
    uneven = []
    for step in taken:
        uneven.append(step._replace(seconds=step.seconds * (1 + seen[step.prefill] % 2)))
        seen[step.prefill] += 1
    found = held_out_residuals(uneven)
    # Half of them is told twice what it took (off by 1), the other half of what it took (off by 1/2).
    for residuals in found.values():
        assert 0.5 <= residuals.median <= 1.0
        assert residuals.p90 == pytest.approx(1.0)


def test_a_kind_of_step_that_never_ran_has_no_residuals() -> None:
    decode = [Step(False, 0, n % 5, 100 * n, 0.01 + 0.001 * n) for n in range(1, 30)]
    assert list(held_out_residuals(decode)) == ["decode"]
