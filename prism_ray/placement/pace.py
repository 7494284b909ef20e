"""How many requests a replica should have at once, so that what it computed is also answered.

Engines prefill first: as long as a replica has prompts it generates nothing, and a burst of long
prompts holds up every answer until it is over. Where prompts take much longer than answers, decoding
a few at a time costs little; where answers do, large batches are what makes them cheap. Knows no
requests and no clock.
"""

from __future__ import annotations

from math import ceil, inf, log

from prism_ray.placement.cost import Average

MEMORY = 512
LEAST_ANSWERS = 8
"""Before so many answers nothing is bounded."""
GRID = 1.15
"""Slots change in steps of so much: a replica's credit should not flicker."""


class Pace:
    """``slots``: so many that the steps of an answer, shared by a batch, are at most ``loss`` times its
    prefill; and one more, so that there is always a prompt to go on with. None: no bound yet.
    """

    def __init__(self, loss: float) -> None:
        self._loss = loss
        self._prefill_s = Average(0.0, MEMORY)
        self._tokens = Average(0.0, MEMORY)
        self._step_s = Average(0.0, MEMORY)
        self._shortest_step_s = inf
        self.slots: int | None = None

    def prefilled(self, seconds: float) -> None:
        """A prompt took so long to compute, by the cost model."""
        self._prefill_s.add(seconds)

    def answered(self, output_tokens: int, seconds: float, *, undisturbed: bool) -> None:
        """An answer took so long after its prefill; ``undisturbed``: no prefill came in between.

        Only these say how long a step takes: what others' prefills took in between is an estimate,
        and many times as large. They have few beside them, so it is mostly what a batch shares. Until
        there are such answers, the shortest steps of any bound it from above.
        """
        self._tokens.add(output_tokens)
        if output_tokens > 1 and seconds > 0:
            step_s = seconds / (output_tokens - 1)
            self._shortest_step_s = min(self._shortest_step_s, step_s)
            if undisturbed:
                self._step_s.add(step_s)
        if min(self._prefill_s.count, self._tokens.count) >= LEAST_ANSWERS:
            self._judge()

    def _judge(self) -> None:
        known = self._step_s.count >= LEAST_ANSWERS
        step_s = self._step_s.value if known else self._shortest_step_s
        if step_s < inf:
            needed = step_s * self._tokens.value / (self._loss * self._prefill_s.value)
            self.slots = 1 + ceil(GRID ** ceil(log(max(1.0, needed), GRID)))
