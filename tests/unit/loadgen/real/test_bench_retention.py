"""What ``bench retention`` makes of runs: rows, answers compared, paired differences."""

from __future__ import annotations

import pytest

from loadgen.bench.retention import Run, answers_line, compare_answers, rows_of, table
from loadgen.bench.retention_settings import FULL, STANDARD, unique_tokens
from loadgen.real.answers import Answer
from loadgen.real.rows import RealRow
from loadgen.real.session import RealRun


def real_run(cached: int, answers: list[Answer], by_class: dict[str, int] | None = None) -> RealRun:
    rows = tuple(
        RealRow(f"r{n}", 0.0, 100, first_token_s=0.5, cached_tokens=cached, answer=answer)
        for n, answer in enumerate(answers)
    )
    return RealRun(rows, (), 700, by_class or {}, 1.0, 0.0)


SAME = Answer((1, 2), (1.0, 1.0), (-0.5, -0.25))


def run(arm: str, seed: int, cached: int, answer: Answer = SAME, **classes: int) -> Run:
    made = real_run(cached, [SAME, answer], classes)
    return Run("standard", arm, seed, 0.25, 5000, made, {"private": 700}, 700)


def test_a_row_has_what_was_asked_for() -> None:
    (row,) = rows_of([run("lru", 0, 30)])
    assert row["retention"] == "lru"
    assert row["seed"] == 0
    assert row["pool_share"] == 0.25
    assert row["hit_rate"] == 0.3
    assert row["ttft_s"]["mean"] == 0.5
    assert row["evicted_tokens_by_class"] == {"private": 700}
    assert row["evicted_classes_from"] == "replay"
    assert row["answers"] is None


def test_an_engine_that_counts_classes_is_believed() -> None:
    row = rows_of([run("lru", 0, 30), run("dart", 0, 30, private=600, reusable=100)])[1]
    assert row["evicted_tokens_by_class"] == {"private": 600, "reusable": 100}
    assert row["evicted_classes_from"] == "engine"


def test_answers_are_compared_with_the_same_seeds_stock_run() -> None:
    other = Answer((1, 3), (1.0, 4e-4), (-0.5, -0.25))
    rows = rows_of([run("lru", 0, 30), run("lru", 1, 30), run("dart", 1, 40, other)])
    answers = rows[2]["answers"]
    assert (answers["compared"], answers["identical"]) == (2, 1)
    assert answers["differences"] == [{"position": 1, "gap": 4e-4}]
    assert answers["all_differences_near_ties"]
    assert "1 of 2 as under lru" in answers_line(rows)


def test_a_difference_that_no_near_tie_explains_is_told() -> None:
    answers = compare_answers(
        real_run(0, [Answer((1,), (1.0,), (-0.5,))]), real_run(0, [Answer((2,), (2.0,), (-0.5,))])
    )
    assert not answers["all_differences_near_ties"]


def test_a_prompt_that_was_written_in_another_order_is_another_prompt() -> None:
    one, other = (real_run(0, [SAME, Answer((n,), (1.0,), (-0.5,))]) for n in (1, 2))
    one.rows[1].order = (1, 0)
    other.rows[1].order = (0, 1)
    answers = compare_answers(one, other)
    assert (answers["compared"], answers["identical"]) == (1, 1)
    assert answers["of_another_order"] == 1


def test_wrong_kv_shows_in_the_log_probabilities_of_equal_tokens() -> None:
    answers = compare_answers(
        real_run(0, [SAME]), real_run(0, [Answer((1, 2), (1.0, 1.0), (-0.5, -0.5))])
    )
    assert answers["largest_logprob_difference"] == 0.25


def test_the_table_pairs_seeds() -> None:
    runs = [run(arm, s, c) for s in (0, 1) for arm, c in (("lru", 20 + s), ("dart", 23 + s))]
    assert "+3.00 ± 0.00" in table(rows_of(runs))


def test_settings_draw_the_same_requests_again_and_a_quarter_of_their_tokens_is_the_pool() -> None:
    assert STANDARD.arrivals(1) == STANDARD.arrivals(1) != STANDARD.arrivals(2)
    unique = [unique_tokens(STANDARD.arrivals(seed)) for seed in (0, 1, 2)]
    assert STANDARD.pool_tokens((0, 1, 2)) == round(0.25 * sum(unique) / 3)
    assert {a.ticket.skeleton.prompt_tokens for a in STANDARD.arrivals(0)} == {535}
    assert len({setting.name for setting in FULL}) == len(FULL)


def test_a_pool_holds_two_of_the_longest_prompts() -> None:
    small = FULL[0].__class__("small", pool_share=0.001)
    assert small.pool_tokens((0,)) == pytest.approx(2 * (535 + 8))
