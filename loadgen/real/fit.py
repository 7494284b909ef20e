"""What a real engine's steps cost: the step model's linear cost, fitted to recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from prism_ray.engine.cost import CostModel
from prism_ray.engine.sglang_steps import StepRecord

BUSY_GAP_S = 0.005
"""A step that begins so soon after the one before was formed in between: its forming is its cost."""


class Fit(NamedTuple):
    """A fitted cost, and how well it tells the steps' durations.

    ``explained`` is the coefficient of determination R²; ``total_error`` the relative error of the
    sum of all durations.
    """

    cost: CostModel
    steps: int
    explained: float
    total_error: float


class Residuals(NamedTuple):
    """How far a cost is from steps that it was not fitted to: |told − took| / took of single steps
    (median, 90th percentile), and the relative error of the sum of their durations."""

    steps: int
    median: float
    p90: float
    total: float


class Step(NamedTuple):
    """What a recorded step held and how long it kept the engine; ``prefill`` says which kind it was."""

    prefill: bool
    new_tokens: int
    decode_requests: int
    context_tokens: int
    seconds: float


def steps_taken(records: Sequence[StepRecord]) -> list[Step]:
    """Consecutive records as steps."""
    return [
        Step(r.prefill, r.new_tokens, r.decode_requests, r.context_tokens, seconds)
        for r, seconds in zip(records, durations_s(records), strict=True)
    ]


def fit_cost(records: Sequence[StepRecord]) -> Fit:
    """Least squares over recorded steps, coefficients not negative. ValueError for fewer than four.

    A column that would get a negative coefficient is left out and the others are fitted again.
    """
    return fit_steps(steps_taken(records))


def fit_steps(steps: Sequence[Step]) -> Fit:
    """``fit_cost`` of steps whose durations are known."""
    if len(steps) < 4:
        raise ValueError(f"{len(steps)} steps are too few to fit four costs")
    features, seconds = _columns(steps)
    values = _non_negative(features, seconds)
    told = features @ values
    spread = float(np.sum((seconds - seconds.mean()) ** 2))
    explained = 1.0 - float(np.sum((seconds - told) ** 2)) / spread if spread else 1.0
    total_error = float(told.sum() / seconds.sum() - 1.0)
    return Fit(CostModel(*(float(v) for v in values)), len(steps), explained, total_error)


def held_out_residuals(steps: Sequence[Step]) -> dict[str, Residuals]:
    """By kind ("prefill", "decode"): each half of the steps against the cost fitted to the other.

    Of each kind every second step is in the same half. ValueError for fewer than four steps in one.
    """
    sorts = [[step for step in steps if step.prefill is kind] for kind in (True, False)]
    first = [step for sort in sorts for step in sort[::2]]
    second = [step for sort in sorts for step in sort[1::2]]
    told: list[tuple[Step, float]] = []
    for half, other in ((first, second), (second, first)):
        cost = fit_steps(other).cost
        told += [(s, cost.step_s(*s[1:4])) for s in half]
    kinds = {"prefill": True, "decode": False}
    return {
        name: _residuals([pair for pair in told if pair[0].prefill is kind])
        for name, kind in kinds.items()
        if any(step.prefill is kind for step in steps)
    }


def _residuals(told: Sequence[tuple[Step, float]]) -> Residuals:
    seconds, guesses = (np.array(x) for x in zip(*((s.seconds, t) for s, t in told), strict=True))
    errors = np.abs(guesses - seconds) / seconds
    return Residuals(
        len(told),
        float(np.median(errors)),
        float(np.percentile(errors, 90)),
        float(guesses.sum() / seconds.sum() - 1.0),
    )


def _columns(
    steps: Sequence[Step],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    features = [[1.0, s.new_tokens, s.decode_requests, s.context_tokens] for s in steps]
    return np.array(features, dtype=float), np.array([s.seconds for s in steps])


def durations_s(steps: Sequence[StepRecord]) -> list[float]:
    """How long each step kept the engine: from the end of the step before it where that was just now."""
    seconds, before_s = [], float("-inf")
    for step in steps:
        begin_s = before_s if step.begin_s - before_s <= BUSY_GAP_S else step.begin_s
        seconds.append(step.end_s - begin_s)
        before_s = step.end_s
    return seconds


def _non_negative(
    features: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    columns = [i for i in range(features.shape[1]) if features[:, i].any()]
    while True:
        found, *_ = np.linalg.lstsq(features[:, columns], seconds, rcond=None)
        if (found >= 0).all():
            break
        columns.remove(columns[int(np.argmin(found))])
    values = np.zeros(features.shape[1])
    values[columns] = found
    return values
