"""What is said of an arm's answers, beside those to the original order."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.quality.report import Asked, arm_report, as_table


def asked(order: tuple[int, ...], *answers: str) -> list[Asked]:
    golds = ("yes", "Ann", "Bob Fox", "no")
    kinds = ("comparison", "inference", "inference", "comparison")
    rows = zip(kinds, golds, answers, strict=True)
    return [Asked(str(n), kind, gold, order, said) for n, (kind, gold, said) in enumerate(rows)]


ORIGINAL = asked((0, 1), "Yes", "Ann", "Eve", "no")


def report(arm: list[Asked]) -> dict:
    return arm_report(arm, ORIGINAL, np.random.default_rng(0))


def test_scores_differences_and_changes_are_those_of_the_same_questions() -> None:
    moved = [*asked((1, 0), "Yes", "Eve", "Bob", "No")[:3], ORIGINAL[3]]
    row = report(moved)
    assert row["moved"] == 3
    assert row["f1"]["mean"] == pytest.approx((1 + 0 + 2 / 3 + 1) / 4)
    assert row["em"]["mean"] == pytest.approx(2 / 4)
    assert row["f1_difference"]["mean"] == pytest.approx((2 / 3 - 1) / 4)
    assert row["em_difference"]["mean"] == pytest.approx(-1 / 4)
    assert row["changed"]["mean"] == 2 / 4
    assert row["changed_of_moved"]["mean"] == pytest.approx(2 / 3)
    assert (row["better"], row["worse"]) == (1, 1)
    worse = report(asked((0, 1), "Yes", "Eve", "Eve", "no"))
    assert (worse["better"], worse["worse"]) == (0, 1)
    assert row["by_kind"]["inference"] == {"questions": 2, "f1": pytest.approx(1 / 3), "em": 0.0}
    assert row["f1_difference"]["low"] < 0 < row["f1_difference"]["high"]


def test_the_original_order_beside_itself_has_no_difference() -> None:
    row = report(ORIGINAL)
    assert row["f1_difference"] == row["changed"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert row["moved"] == row["better"] == row["worse"] == 0
    assert row["changed_of_moved"] is None


def test_other_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="same questions"):
        report(ORIGINAL[::-1])


def test_the_table_has_a_line_for_each_arm() -> None:
    table = as_table({"original": report(ORIGINAL)}).splitlines()
    assert len(table) == 3
    assert table[2].startswith("| original | 0 of 4 | 75.0% [")
    assert "| – | 0 / 0 |" in table[2]
