"""Scores of answers as SQuAD defines them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.quality.score import exact_match, normalized, token_f1

WORDS = st.lists(st.sampled_from(["paris", "the", "Rome", "A", "1998", "sam."]), max_size=6)


def test_case_punctuation_articles_and_spaces_do_not_count() -> None:
    assert normalized("  The  U.S.  Federal-Reserve, an end. ") == "us federalreserve end"
    assert normalized("Theory of an anthem") == "theory of anthem", "only whole words"


@pytest.mark.parametrize(
    ("answer", "gold", "em", "f1"),
    [
        ("Yes.", "yes", 1.0, 1.0),
        ("Yes, it does", "Yes", 0.0, 2 * 1 / (3 + 1)),
        ("Sam Bankman-Fried of FTX", "Sam Bankman-Fried", 0.0, 2 * 2 / (4 + 2)),
        ("no", "yes", 0.0, 0.0),
        ("", "yes", 0.0, 0.0),
        ("the", "a", 1.0, 1.0),
        ("Insufficient information.", "Insufficient information", 1.0, 1.0),
        ("go go go", "go go", 0.0, 2 * 2 / (3 + 2)),
        ("Apple", "Google Apple", 0.0, 2 * 1 / (1 + 2)),
    ],
)
def test_scores_of_answers(answer: str, gold: str, em: float, f1: float) -> None:
    assert exact_match(answer, gold) == em
    assert token_f1(answer, gold) == pytest.approx(f1)


@given(WORDS, WORDS, st.randoms(use_true_random=False))
def test_f1_is_symmetric_blind_to_order_and_no_less_than_exact_match(one, other, rng) -> None:
    a, b = " ".join(one), " ".join(other)
    shuffled = list(one)
    rng.shuffle(shuffled)
    assert token_f1(a, b) == token_f1(b, a) == token_f1(" ".join(shuffled), b)
    assert 0 <= exact_match(a, b) <= token_f1(a, b) <= 1
