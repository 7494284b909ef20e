from __future__ import annotations

from functools import partial

import pytest

from loadgen.reproduce import verdicts
from loadgen.reproduce.claims import BadClaim, Reading
from loadgen.reproduce.measures import figures
from loadgen.reproduce.verdicts import (
    MET,
    MET_IN_THE_MEAN,
    NOT_MET,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    UNDER_READINGS,
)
from loadgen.sweep.tables import Incomparable

from .scenes import READING, claim, grid, results, run

judge = partial(verdicts.judge, seeds_least=2)  # a verdict is easier to see with few

PEER = grid("peer", [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])


def ours(*factors: float) -> list[dict[str, object]]:
    """Our P99 as a multiple of the peer's, by seed, at both rates."""
    return grid(
        "ours",
        [[f * p for f, p in zip(factors, row, strict=True)] for row in ([1, 2, 3], [2, 4, 6])],
    )


def test_a_change_is_paired_by_seed_and_averaged_over_rates() -> None:
    (found,) = figures(claim(), READING, results(*PEER, *ours(0.7, 0.8, 0.9)))
    assert found.value.mean == pytest.approx(-0.2)
    assert found.value.high == pytest.approx(-0.2 + 4.303 * 0.1 / 3**0.5)
    assert found.seeds == (0, 1, 2)
    assert found.other == "peer"


def test_the_best_peer_is_picked_at_each_rate() -> None:
    other = grid("other", [[0.5, 1.0, 1.5], [9.0, 9.0, 9.0]])
    both = claim(against=("peer", "other"), each=True)
    low, high = figures(both, READING, results(*PEER, *other, *ours(0.8, 0.8, 0.8)))
    assert (low.other, high.other) == ("other", "peer")
    assert low.value.mean == pytest.approx(0.6)
    assert high.value.mean == pytest.approx(-0.2)


def test_an_effect_is_reproduced_if_there_certainly_is_one_that_may_be_as_large() -> None:
    def word(*factors: float) -> str:
        return judge(claim(), results(*PEER, *ours(*factors))).word

    assert word(0.75, 0.80, 0.84) == REPRODUCED
    assert word(0.95, 0.96, 0.97) == NOT_REPRODUCED, "certainly less, but less than claimed"
    assert word(0.60, 0.80, 1.00) == NOT_REPRODUCED, "perhaps as much, perhaps nothing"
    assert word(1.2, 1.25, 1.3) == NOT_REPRODUCED


def test_the_reason_says_in_which_way_it_fails() -> None:
    def reason(*factors: float) -> str:
        return judge(claim(), results(*PEER, *ours(*factors))).reason

    assert reason(0.95, 0.96, 0.97).startswith("smaller than claimed: ours is -4.0%")
    assert reason(0.60, 0.80, 1.00).startswith("no difference beyond chance")
    assert reason(1.2, 1.25, 1.3).startswith("the other way round: ours is +25.0%")


def test_a_level_may_be_off_by_its_tolerance_and_chance_at_most_doubles_that() -> None:
    def word(*hits: float) -> str:
        runs = [run("ours", q, s, hit=h) for q in READING.rates for s, h in enumerate(hits)]
        level = claim(
            kind="level", metrics=("hit_rate",), against=(), number=0.49, relation="about",
            tolerance=0.01,
        )  # fmt: skip
        return judge(level, results(*runs)).word

    assert word(0.481, 0.481, 0.481) == REPRODUCED
    assert word(0.470, 0.475, 0.480) == REPRODUCED
    assert word(0.478, 0.478, 0.478) == NOT_REPRODUCED
    assert word(0.3, 0.5, 0.6) == NOT_REPRODUCED, "a wide interval is no agreement"


def test_readings_under_which_it_holds_are_named() -> None:
    there = Reading("there", "prefix-270-4b", rates=READING.rates)
    both = claim(readings=(READING, there))
    here = [("paper-4b", r) for r in [*PEER, *ours(0.7, 0.7, 0.71)]]
    elsewhere = [("prefix-270-4b", r) for r in [*PEER, *ours(1.0, 1.0, 1.01)]]
    verdict = judge(both, type(results())([*here, *elsewhere]))
    assert verdict.word == UNDER_READINGS
    assert verdict.reason == "holds under: here"
    assert [a.holds for a in verdict.answers] == [True, False]
    only_here = judge(both, type(results())(here))
    assert only_here.word == UNDER_READINGS, "the others may fail"
    nowhere = judge(both, type(results())(elsewhere))
    assert nowhere.word == NOT_REPRODUCED
    assert nowhere.reason.endswith("(1 of 2 readings ran)")
    assert judge(both, results()).word == NOT_RUN


def test_a_target_is_met_by_the_interval_or_in_the_mean() -> None:
    def word(*factors: float, **more: object) -> str:
        return judge(claim(source="ours", **more), results(*PEER, *ours(*factors))).word

    assert word(0.75, 0.76, 0.77) == MET
    assert word(0.60, 0.75, 0.90) == MET_IN_THE_MEAN
    assert word(0.60, 0.75, 0.90, certain=True) == NOT_MET
    assert word(0.85, 0.86, 0.87) == NOT_MET


def test_a_claim_about_each_rate_fails_at_one() -> None:
    at_each = claim(source="ours", each=True, number=0.0)
    mixed = grid("ours", [[0.1, 0.2, 0.3], [2.2, 4.4, 6.6]])
    verdict = judge(at_each, results(*PEER, *mixed))
    assert verdict.word == NOT_MET
    assert "at 20/s" in verdict.reason
    assert judge(claim(source="ours", number=0.0), results(*PEER, *mixed)).word == MET


def test_falling_short_counts_as_met_only_beside_the_bound() -> None:
    """At the second rate the peer is so good that nobody could be 20% better."""

    def word(least: float) -> str:
        near = [run("ours", 10.0, s, p99=0.7 * p, least=0.1) for s, p in enumerate((1, 2, 3))]
        near += [run("ours", 20.0, s, p99=p, least=p * least) for s, p in enumerate((2, 4, 6))]
        target = claim(source="ours", number=-0.25, bound_ratio=1.1)
        return judge(target, results(*PEER, *near)).word

    assert word(0.95) == MET_IN_THE_MEAN
    assert word(0.85) == NOT_MET


def test_a_difference_can_be_against_a_multiple() -> None:
    wait = claim(
        source="ours", kind="difference", metrics=("max_wait_s",), scale=1.1, number=0.1, unit="s"
    )
    waits = [run("peer", q, s, max_wait_s=1.0) for q in READING.rates for s in (0, 1)]
    mine = [run("ours", q, s, max_wait_s=1.15) for q in READING.rates for s in (0, 1)]
    (found,) = figures(wait, READING, results(*waits, *mine))
    assert found.value.mean == pytest.approx(0.05)
    assert judge(wait, results(*waits, *mine)).word == MET


def test_one_seed_and_part_of_the_rates_say_nothing() -> None:
    one = [r for r in [*PEER, *ours(0.7, 0.7, 0.7)] if r["seed"] == 0]
    verdict = judge(claim(), results(*one))
    assert (verdict.word, verdict.answers[0].holds) == (NOT_RUN, None)
    assert verdict.answers[0].figures, "its figure is shown nevertheless"
    part = [r for r in [*PEER, *ours(0.7, 0.7, 0.71)] if r["qps"] == 10.0]
    assert judge(claim(), results(*part)).word == NOT_RUN
    assert judge(claim(), results(*part), some_rates=True).word == REPRODUCED


def test_settings_are_compared_seed_by_seed_though_they_serve_other_prompts() -> None:
    reading = Reading("longer", "top-8-4b", rates=(10.0,), other_setting="paper-4b")
    longer = claim(arm="peer", number=0.0, relation="at_least", readings=(reading,))
    long = [("top-8-4b", run("peer", 10.0, s, p99=2.0, prompts=f"x{s}")) for s in (0, 1)]
    short = [("paper-4b", run("peer", 10.0, s, p99=1.0)) for s in (0, 1)]
    assert judge(longer, type(results())([*long, *short])).word == REPRODUCED


def test_runs_that_served_different_prompts_do_not_stand_side_by_side() -> None:
    wrong = [run("ours", q, s, prompts="others") for q in READING.rates for s in range(3)]
    with pytest.raises(Incomparable, match="prompts"):
        judge(claim(), results(*PEER, *wrong))


def test_fewer_than_five_seeds_say_nothing_of_a_claim() -> None:
    served = results(*PEER, *ours(0.8, 0.8, 0.8))
    verdict = verdicts.judge(claim(), served)
    assert (verdict.word, verdict.reason) == (NOT_RUN, "3 seeds of 5")
    assert judge(claim(), served).word == REPRODUCED


def test_a_target_of_which_not_all_readings_ran_is_met_where_it_ran() -> None:
    elsewhere = Reading("there", "paper-13b", rates=(10.0,))
    target = claim(source="ours", number=-0.1, readings=(READING, elsewhere))
    verdict = judge(target, results(*PEER, *ours(0.8, 0.8, 0.8)))
    assert verdict.word == verdicts.MET_WHERE_RUN
    assert not verdict.good
    assert verdict.reason.endswith("(1 of 2 readings ran)")
    assert judge(target, results(*PEER, *ours(0.99, 0.99, 0.99))).word == NOT_MET


def test_only_seeds_that_both_sides_have_count() -> None:
    fewer = [one for one in ours(0.8, 0.8, 0.8) if one["seed"] != 1]
    (found,) = figures(claim(), READING, results(*PEER, *fewer))
    assert found.seeds == (0, 2)


def test_the_bound_stands_beside_the_figure() -> None:
    (found,) = figures(claim(), READING, results(*PEER, *ours(0.8, 0.8, 0.8)))
    assert found.bound == pytest.approx(sum(0.5 / p - 1 for p in (1, 2, 3, 2, 4, 6)) / 6), (
        "with our P99 at the least possible"
    )
    assert found.over_bound == pytest.approx(sum(0.8 * p / 0.5 for p in (1, 2, 3, 2, 4, 6)) / 6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "level"},
        {"against": ()},
        {"relation": "equals"},
        {"metrics": ()},
        {"readings": (Reading("x", "no-such-setting"),)},
    ],
)
def test_a_claim_that_cannot_be_computed_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadClaim):
        claim(**wrong)
