"""How fast an engine prefills, and for what share of its time; the clock is the caller's."""

from __future__ import annotations

HALF_LIFE_S = 30.0
"""Seconds of prefilling after which what was seen before counts half."""


class WorkMeter:
    """Follows the prefills that an engine owes: each begins once and ends once, prefilled or not.

    Time in which none is owed says nothing about the engine's speed and is left out of it. Moments are
    seconds on one clock; one that comes late counts as now.
    """

    def __init__(self) -> None:
        self._owed = 0
        self._seen_s: float | None = None
        self._busy_s = 0.0
        self._recent_busy_s = 0.0
        self._recent_prompt = 0.0
        self._recent_uncached = 0.0
        self._asked_s: float | None = None
        self._asked_busy_s = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Uncached tokens a second while prefills were owed; 0 until one ended."""
        return self._recent_uncached / self._recent_busy_s if self._recent_busy_s > 0 else 0.0

    @property
    def uncached_share(self) -> float:
        """Of the tokens of recent prompts, those that were computed; 1 until a prefill ended."""
        return self._recent_uncached / self._recent_prompt if self._recent_prompt > 0 else 1.0

    def began(self, now_s: float) -> None:
        """The engine owes one more prefill."""
        self._pass_to(now_s)
        self._owed += 1

    def ended(self, prompt_tokens: int, uncached_tokens: int, now_s: float) -> None:
        """A prefill that was owed is done."""
        self.dropped(now_s)
        self._recent_prompt += prompt_tokens
        self._recent_uncached += uncached_tokens

    def dropped(self, now_s: float) -> None:
        """A prefill is not owed any more."""
        self._pass_to(now_s)
        if not self._owed:
            raise ValueError("no prefill is owed")
        self._owed -= 1

    def busy_share(self, now_s: float) -> float:
        """The share of the time since this was asked last in which a prefill was owed, 0 to 1.

        The first answer, and one for no time at all, is whether one is owed now.
        """
        self._pass_to(now_s)
        asked_s, before_s = self._asked_s, self._asked_busy_s
        self._asked_s, self._asked_busy_s = now_s, self._busy_s
        if asked_s is None or now_s <= asked_s:
            return float(self._owed > 0)
        return min(1.0, (self._busy_s - before_s) / (now_s - asked_s))

    def _pass_to(self, now_s: float) -> None:
        passed_s = 0.0 if self._seen_s is None else max(0.0, now_s - self._seen_s)
        self._seen_s = now_s if self._seen_s is None else max(now_s, self._seen_s)
        if not self._owed or not passed_s:
            return
        kept = 0.5 ** (passed_s / HALF_LIFE_S)
        self._recent_busy_s = kept * self._recent_busy_s + passed_s
        self._recent_prompt *= kept
        self._recent_uncached *= kept
        self._busy_s += passed_s
