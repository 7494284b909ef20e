"""Answers as numbers, and where two of them part."""

from __future__ import annotations

from math import inf

import pytest

from loadgen.real.answers import Answer, Difference, first_difference, read_answer, request_body


def payload(token_ids: list[int], top: list[dict[str, float]] | None) -> dict[str, object]:
    logprobs = None if top is None else {"top_logprobs": top, "token_logprobs": [-0.5] * len(top)}
    return {"choices": [{"token_ids": token_ids, "logprobs": logprobs}]}


def test_an_answer_has_ids_and_the_distance_of_the_best_two() -> None:
    answer = read_answer(payload([3, 4], [{"a": -0.5, "b": -2.0}, {"c": -0.1}]))
    assert answer == Answer((3, 4), (1.5, inf), (-0.5, -0.5))


def test_without_log_probabilities_there_are_ids_only() -> None:
    assert read_answer(payload([3, 4], None)) == Answer((3, 4))
    assert "logprobs" not in request_body(2, gaps=False)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Answer((1, 2, 3), (9.0, 9.0, 9.0)), None),
        (Answer((1, 2), (9.0, 9.0)), None),
        (Answer((1, 5, 3), (9.0, 0.25, 9.0)), Difference(1, 0.25)),
        (Answer((4, 2, 3)), Difference(0, 0.5)),
    ],
)
def test_answers_part_at_their_first_different_token(
    other: Answer, expected: Difference | None
) -> None:
    assert first_difference(Answer((1, 2, 3), (0.5, 0.75, 1.0)), other) == expected
