"""Verdicts: what the intervals of a claim's figures say about it, in words. Runs and reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadgen.reproduce.claims import Claim, Reading
from loadgen.reproduce.measures import Figure, figures
from loadgen.reproduce.results import Results
from loadgen.sweep.intervals import Interval

REPRODUCED = "reproduced"
UNDER_READINGS = "reproduced under these readings"
NOT_REPRODUCED = "not reproduced"
MET = "met"
MET_IN_THE_MEAN = "met in the mean"
MET_WHERE_RUN = "met where it ran"
NOT_MET = "not met"
NOT_RUN = "not run"

SEEDS_LEAST = 5
"""Fewer say nothing of a claim."""


@dataclass(frozen=True)
class Answer:
    """What one reading says of a claim. ``holds`` None: nothing ran. ``clearly``: whole intervals."""

    reading: Reading
    figures: tuple[Figure, ...]
    holds: bool | None
    clearly: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """``word`` is one of the constants above; ``reason`` says why in a sentence."""

    claim: Claim
    word: str
    reason: str
    answers: tuple[Answer, ...]

    @property
    def good(self) -> bool:
        return self.word in (REPRODUCED, MET, MET_IN_THE_MEAN)


def judge_all(claims: Iterable[Claim], results: Results, *, quick: bool = False) -> list[Verdict]:
    """Of a ``quick`` run two seeds are enough, and some of the rates."""
    least = 2 if quick else SEEDS_LEAST
    return [judge(claim, results, seeds_least=least, some_rates=quick) for claim in claims]


def judge(
    claim: Claim, results: Results, *, seeds_least: int = SEEDS_LEAST, some_rates: bool = False
) -> Verdict:
    """A paper's claim must hold under a reading by its interval; a target of ours in the mean.

    A reading of which only some rates ran says nothing, unless ``some_rates`` are enough; nor does one
    with fewer than ``seeds_least`` seeds.
    """
    answers = tuple(
        answer(claim, r, figures(claim, r, results), seeds_least=seeds_least, some_rates=some_rates)
        for r in claim.readings
    )
    ran = [a for a in answers if a.holds is not None]
    if not ran:
        return Verdict(claim, NOT_RUN, answers[0].reason, answers)
    good = [a for a in ran if a.holds]
    reason = _reasons(ran, good)
    if len(ran) < len(answers):
        reason += f" ({len(ran)} of {len(answers)} readings ran)"
    if claim.source == "ours":
        word = _target_word(ran, good)
        if word != NOT_MET and len(ran) < len(answers):
            word = MET_WHERE_RUN
        return Verdict(claim, word, reason, answers)
    if len(good) == len(answers):
        return Verdict(claim, REPRODUCED, reason, answers)
    if good:
        names = ", ".join(a.reading.name for a in good)
        return Verdict(claim, UNDER_READINGS, f"holds under: {names}", answers)
    return Verdict(claim, NOT_REPRODUCED, reason, answers)


def _target_word(ran: Sequence[Answer], good: Sequence[Answer]) -> str:
    if len(good) < len(ran):
        return NOT_MET
    return MET if all(a.clearly for a in good) else MET_IN_THE_MEAN


def _reasons(ran: Sequence[Answer], good: Sequence[Answer]) -> str:
    """Of those that fail, else of the first that holds."""
    failing = [a for a in ran if a not in good]
    if not failing:
        return ran[0].reason if len(ran) == 1 else "holds under every reading that ran"
    if len({a.reason for a in failing}) == 1:
        return failing[0].reason
    return "; ".join(f"{a.reading.name}: {a.reason}" for a in failing)


def answer(
    claim: Claim,
    reading: Reading,
    found: Sequence[Figure],
    *,
    seeds_least: int = SEEDS_LEAST,
    some_rates: bool = False,
) -> Answer:
    """Whether the figures of one reading bear the claim out; one seed says nothing."""
    if not found:
        return Answer(reading, (), None, False, "none of its runs is there")
    if (seeds := len(found[0].seeds)) < max(2, seeds_least):
        reason = "one seed, so no interval" if seeds == 1 else f"{seeds} seeds of {seeds_least}"
        return Answer(reading, tuple(found), None, False, reason)
    if not (some_rates or found[0].of_all_rates):
        return Answer(reading, tuple(found), None, False, "only some of its rates ran")
    judged = [f for f in found if claim.each or f.qps is None]
    failing = [f for f in judged if not _holds(claim, f.value)]
    clearly = all(_certainly(claim, f.value) for f in judged)
    if not failing:
        return Answer(reading, tuple(found), True, clearly, _why_it_holds(claim, judged))
    if claim.bound_ratio is not None:
        short = [f for f in found if f.qps is not None and not _holds(claim, f.value)]
        if all(f.over_bound is not None and f.over_bound <= claim.bound_ratio for f in short):
            reason = (
                f"short only where P99 is at most {claim.bound_ratio:g} times the least possible"
            )
            return Answer(reading, tuple(found), True, False, reason)
    worst = max(failing, key=lambda f: _shortfall(claim, f.value))
    return Answer(reading, tuple(found), False, False, _why_it_fails(claim, worst, len(judged)))


def _holds(claim: Claim, value: Interval) -> bool:
    if claim.source == "ours":
        return _certainly(claim, value) if claim.certain else _beyond(claim, value.mean)
    if claim.each:
        return _beyond(claim, value.mean)
    low, high = ends(value)
    if claim.relation == "about":
        # Chance may widen the tolerance, but a wide interval is no agreement.
        reach = claim.tolerance + min(claim.tolerance, (high - low) / 2)
        return abs(value.mean - claim.number) <= reach
    # An effect is borne out if there certainly is one, and it may be as large as claimed.
    if claim.relation == "at_most":
        return low <= claim.number and (high < 0 or claim.number > 0)
    return high >= claim.number and (low > 0 or claim.number < 0)


def _beyond(claim: Claim, value: float) -> bool:
    if claim.relation == "about":
        return abs(value - claim.number) <= claim.tolerance
    return value <= claim.number if claim.relation == "at_most" else value >= claim.number


def _certainly(claim: Claim, value: Interval) -> bool:
    return value.low is not None and all(_beyond(claim, end) for end in ends(value))


def _shortfall(claim: Claim, value: Interval) -> float:
    if claim.relation == "about":
        return abs(value.mean - claim.number)
    return value.mean - claim.number if claim.relation == "at_most" else claim.number - value.mean


def ends(value: Interval) -> tuple[float, float]:
    """Of the interval; of a single value it is that."""
    if value.low is None or value.high is None:
        return value.mean, value.mean
    return value.low, value.high


def _why_it_holds(claim: Claim, judged: Sequence[Figure]) -> str:
    if claim.each and len(judged) > 1:
        return f"holds in all {len(judged)} places"
    return f"ours is {show(claim, judged[0].value)}"


def _why_it_fails(claim: Claim, worst: Figure, count: int) -> str:
    value = worst.value
    where = f" at {worst.qps:.3g}/s" if claim.each and worst.qps is not None else ""
    where += f" ({worst.metric})" if len(claim.metrics) > 1 else ""
    ours = f"ours is {show(claim, value)}{where}"
    if claim.kind == "level" or claim.relation == "about":
        return f"{'higher' if value.mean > claim.number else 'lower'} than claimed: {ours}"
    low, high = ends(value)
    if low <= 0 <= high:
        return f"no difference beyond chance: {ours}"
    if (value.mean < 0) != (
        claim.number < 0 or (claim.number == 0 and claim.relation == "at_most")
    ):
        return f"the other way round: {ours}"
    return f"smaller than claimed: {ours}"


def show(claim: Claim, value: Interval) -> str:
    """Mean and interval in the claim's unit."""
    mean, ends_ = number(claim, value.mean), ""
    if value.low is not None and value.high is not None:
        ends_ = (
            f" [{number(claim, value.low, unit=False)}, {number(claim, value.high, unit=False)}]"
        )
    return mean + ends_


def number(claim: Claim, value: float, *, unit: bool = True) -> str:
    """A figure of the claim for people: "%" of something, percentage "points", or s and /s."""
    sign = "+" if claim.kind != "level" else ""
    if claim.unit in ("%", "points"):
        digits = 1 if claim.kind == "change" else 2
        text = f"{100 * value:{sign}.{digits}f}"
        return text + (("%" if claim.unit == "%" else " points") if unit else "")
    text = f"{value:{sign}.3g}" if claim.unit else f"{value:{sign}.3f}"
    return text + (f" {claim.unit}" if unit and claim.unit else "")
