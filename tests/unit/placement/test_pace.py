"""How many requests a replica has at once: few where prompts take long, many where answers do."""

from __future__ import annotations

import pytest

from prism_ray.placement.pace import GRID, LEAST_ANSWERS, Pace


def paced(prefill_s: float, tokens: int, step_s: float, loss: float = 0.1) -> int | None:
    pace = Pace(loss)
    for _ in range(LEAST_ANSWERS):
        pace.prefilled(prefill_s)
        pace.answered(tokens, (tokens - 1) * step_s, undisturbed=True)
    return pace.slots


def test_long_prompts_with_short_answers_are_served_a_few_at_a_time() -> None:
    assert paced(0.8, 16, 0.005) == 2
    assert paced(0.8, 160, 0.005) == pytest.approx(1 + 10, abs=10 * (GRID - 1) + 1)


def test_where_answers_take_longer_than_prompts_batches_are_large() -> None:
    slots = paced(0.01, 200, 0.005)
    assert slots is not None
    assert slots >= 1_000


def test_slots_are_as_many_as_the_loss_asks_for() -> None:
    few, many = paced(0.1, 40, 0.005, loss=0.2), paced(0.1, 40, 0.005, loss=0.05)
    assert few is not None
    assert many is not None
    assert (many - 1) / (few - 1) == pytest.approx(4, rel=0.3)


def test_nothing_is_bounded_before_there_is_something_to_go_by() -> None:
    pace = Pace(0.1)
    for _ in range(LEAST_ANSWERS - 1):
        pace.prefilled(1.0)
        pace.answered(4, 0.03, undisturbed=True)
    assert pace.slots is None
    pace.prefilled(1.0)
    pace.answered(4, 0.03, undisturbed=True)
    assert pace.slots == 2


def test_answers_that_others_prefills_held_up_do_not_say_how_long_a_step_takes() -> None:
    """A burst of prompts makes every answer take seconds: no reason to let in more of them."""
    pace = Pace(0.1)
    for _ in range(LEAST_ANSWERS):
        pace.prefilled(0.8)
        pace.answered(16, 15 * 0.005, undisturbed=True)
    for _ in range(50):
        pace.prefilled(0.8)
        pace.answered(16, 9.0, undisturbed=False)
    assert pace.slots == 2


def test_until_an_answer_came_undisturbed_the_shortest_steps_bound_it() -> None:
    pace = Pace(0.1)
    for seconds in (9.0, 4.0, 0.3, 7.0, 9.0, 8.0, 6.0, 5.0):
        pace.prefilled(0.8)
        pace.answered(16, seconds, undisturbed=False)
    assert pace.slots is not None
    assert pace.slots <= 6


def test_answers_of_one_token_have_no_step() -> None:
    assert paced(0.5, 1, 0.0) is None
