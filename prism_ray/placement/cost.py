"""How long prefill and decode take, fitted to what replicas report. Knows no requests and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

_TERMS = range(4)
NOISE = 0.2
"""How far a stretch's seconds are from what its prompts explain, of themselves."""
DRIFT = 1e-5
"""How much of the prior's variance a cost can drift between two observations."""
BUSY_BATCH = 8.0
"""Requests that a busy replica decodes together at least."""
_UNIT = 1_000.0
"""Tokens are counted in thousands inside the fit, so that its terms are of one size."""


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """t = a + b·n + c·L + d·n·L seconds for n new tokens of a prompt of L tokens (Preble, appendix B)."""

    a: float
    b: float
    c: float
    d: float

    def seconds(self, new_tokens: float, prompt_tokens: float) -> float:
        """Never below 1 µs: a fit through few points may bend below zero where it has none."""
        bent = (self.b + self.d * prompt_tokens) * new_tokens + self.c * prompt_tokens + self.a
        return bent if bent > 1e-6 else 1e-6

    def line(self, prompt_tokens: float) -> tuple[float, float]:
        """t as a line over n for one prompt: seconds at n = 0, seconds a new token."""
        return self.a + self.c * prompt_tokens, self.b + self.d * prompt_tokens


class PrefillFit:
    """Recursive least squares over batches of prefills, for costs that drift (a Kalman filter).

    One observation is what a replica computed between two moments: the sums of 1, n, L and n·L over
    the prompts whose prefill ended, and the seconds it took, believed to ``NOISE`` of themselves. The
    prior is a rate of ``tokens_per_s``, held lightly. Each observation lets every cost drift a
    little, up to the prior's uncertainty: so what is not seen for long stays as it was and is learnt
    anew quickly, where plain forgetting would let it blow up.
    """

    def __init__(self, tokens_per_s: float) -> None:
        per_unit = _UNIT / tokens_per_s
        self._theta = [0.0, per_unit, 0.0, 0.0]
        self._widest = [(share * per_unit) ** 2 for share in (0.1, 1.0, 0.1, 0.03)]
        self._spread = [[self._widest[i] if i == j else 0.0 for j in _TERMS] for i in _TERMS]
        self.observations = 0
        self.time = self._current()

    def observe(
        self, prompts: int, new_tokens: float, prompt_tokens: float, products: float, seconds: float
    ) -> None:
        """Sums over the prompts of one stretch of work. What is not positive is ignored."""
        if prompts < 1 or seconds <= 0 or new_tokens <= 0:
            return
        x = (float(prompts), new_tokens / _UNIT, prompt_tokens / _UNIT, products / _UNIT**2)
        spread = self._spread
        along = [_dot(row, x) for row in spread]
        scale = (NOISE * seconds) ** 2 + _dot(along, x)
        error = (seconds - _dot(self._theta, x)) / scale
        self._theta = [value + error * g for value, g in zip(self._theta, along, strict=True)]
        self._spread = [
            [spread[i][j] - along[i] * along[j] / scale for j in _TERMS] for i in _TERMS
        ]
        for i, widest in enumerate(self._widest):
            if self._spread[i][i] < widest:
                self._spread[i][i] += DRIFT * widest
        self.observations += 1
        self.time = self._current()

    @property
    def state(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What ``resume`` takes besides the number of observations: 4 costs, their 16 covariances."""
        return tuple(self._theta), tuple(value for row in self._spread for value in row)

    def resume(self, theta: Sequence[float], spread: Sequence[float], observations: int) -> None:
        """Go on from where another fit was."""
        self._theta = list(theta)
        self._spread = [list(spread[4 * i : 4 * i + 4]) for i in _TERMS]
        self.observations = observations
        self.time = self._current()

    def _current(self) -> PrefillTime:
        a, b, c, d = (max(0.0, value) for value in self._theta)
        # A fit that leaves new tokens nearly free would make every miss look harmless.
        return PrefillTime(a, max(b / _UNIT, 1e-9), c / _UNIT, d / _UNIT**2)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Of four terms; numpy takes longer than this for so few."""
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2] + left[3] * right[3]


class Average:
    """An exponentially weighted mean that starts as the plain mean of what it has seen."""

    __slots__ = ("_weight_min", "count", "value")

    def __init__(self, value: float, memory: int) -> None:
        """``value`` until the first ``add``; then the mean of about the last ``memory``."""
        self.value = value
        self.count = 0
        self._weight_min = 1.0 / memory

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(1.0 / self.count, self._weight_min) * (value - self.value)

    @property
    def state(self) -> tuple[float, int]:
        """Mean and count, for ``resume``."""
        return self.value, self.count

    def resume(self, state: tuple[float, int]) -> None:
        """Go on from where another average was."""
        self.value, self.count = state


class DecodeFit:
    """Seconds a generated token takes, as a line over the requests that are decoded together.

    Least squares with exponential forgetting over finished answers (Preble, appendix B, has it
    linear).
    """

    def __init__(self, token_s: float, memory: int = 1024) -> None:
        """``token_s`` until there are answers."""
        self._prior_s = token_s
        self.output_tokens = Average(0.0, memory)
        self._running = Average(0.0, memory)
        self._seconds = Average(0.0, memory)
        self._square = Average(0.0, memory)
        self._product = Average(0.0, memory)

    def observe(self, output_tokens: int, seconds: float, running: int) -> None:
        """An answer of so many tokens took so long beside ``running - 1`` others."""
        self.output_tokens.add(output_tokens)
        if output_tokens > 1 and seconds > 0:
            each_s = seconds / output_tokens
            self._running.add(running)
            self._seconds.add(each_s)
            self._square.add(running * running)
            self._product.add(running * each_s)

    @property
    def state(self) -> tuple[tuple[float, int], ...]:
        """The five averages, for ``resume``."""
        return tuple(average.state for average in self._averages)

    def resume(self, state: Sequence[tuple[float, int]]) -> None:
        """Go on from where another fit was."""
        for average, each in zip(self._averages, state, strict=True):
            average.resume(each)

    @property
    def _averages(self) -> tuple[Average, ...]:
        return self.output_tokens, self._running, self._seconds, self._square, self._product

    @property
    def _spread(self) -> float:
        return max(0.0, self._square.value - self._running.value**2)

    @property
    def _slope(self) -> float:
        if self._spread < 1e-9:
            return 0.0
        slope = self._product.value - self._running.value * self._seconds.value
        return min(max(0.0, slope / self._spread), self._seconds.value / self._running.value)

    @property
    def token_s(self) -> float:
        """What a token takes of a busy replica's time: its share of a batch as large as they get.

        The share of a small batch would make a replica look loaded because it is idle.
        """
        if not self._seconds.count:
            return self._prior_s
        slope = self._slope
        alone = max(0.0, self._seconds.value - slope * self._running.value)
        return slope + alone / max(BUSY_BATCH, self._running.value + 2.0 * sqrt(self._spread))

    @property
    def per_neighbour_s(self) -> float:
        """How much longer a whole mean answer takes for each request decoded beside it."""
        return self._slope * self.output_tokens.value


class Speed:
    """What one replica's work takes against the common fit: ``factor`` 10 is a tenth of the speed.

    A ratio of means, not a mean of ratios: short stretches of work are predicted badly.
    """

    __slots__ = ("_predicted", "_seconds", "factor")

    def __init__(self) -> None:
        self._seconds = Average(0.0, memory=64)
        self._predicted = Average(0.0, memory=64)
        self.factor = 1.0

    def observe(self, seconds: float, predicted_s: float) -> None:
        self._seconds.add(seconds)
        self._predicted.add(predicted_s)
        self._judge()

    @property
    def state(self) -> tuple[tuple[float, int], tuple[float, int]]:
        """Means of seconds and of predicted seconds, for ``resume``."""
        return self._seconds.state, self._predicted.state

    def resume(self, state: tuple[tuple[float, int], tuple[float, int]]) -> None:
        """Go on from where another was."""
        self._seconds.resume(state[0])
        self._predicted.resume(state[1])
        self._judge()

    def _judge(self) -> None:
        if self._seconds.count >= 8:
            self.factor = self._seconds.value / self._predicted.value
