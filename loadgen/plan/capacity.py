"""The capacity model: from prompt lengths, a hit rate and step costs to waiting times and knees.

Prefill comes first in the engine, so a request waits like in an M/G/1 queue and decodes in what
prefill leaves over. Means are of a steady state; nothing here is drawn or simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

KNEE_UNFINISHED = 0.03
"""At the knee 3% of a replay's requests are still unanswered when the last one arrives."""
_STEPS = 60
_EXPONENT_MAX = 50.0


def service_rate(rate_tokens_per_s: float, prompt_tokens: float, hit_rate: float) -> float:
    """Requests/s that a prefill rate sustains: μ = R / (L(1 - h)) (paper, eq. 5).

    ValueError unless R and L are above 0 and h is in [0, 1).
    """
    if rate_tokens_per_s <= 0 or prompt_tokens <= 0:
        raise ValueError("rate and prompt length must be above 0")
    if not 0 <= hit_rate < 1:
        raise ValueError(f"a hit rate is in [0, 1), got {hit_rate}")
    return rate_tokens_per_s / (prompt_tokens * (1 - hit_rate))


def relative_service_rate(
    hit_rate_0: float,
    hit_rate_1: float,
    *,
    batch: float = 1.0,
    rate: float = 1.0,
    prompt: float = 1.0,
) -> float:
    """μ1/μ0 (paper, eq. 6): (M1/M0)·(R1/R0)·(L0/L1)·(1 - h0)/(1 - h1).

    ``batch``, ``rate`` and ``prompt`` are M1/M0, R1/R0 and L1/L0; with all of them 1 this is
    Theorem 1. ValueError for hit rates outside [0, 1).
    """
    if not (0 <= hit_rate_0 < 1 and 0 <= hit_rate_1 < 1):
        raise ValueError("hit rates are in [0, 1)")
    return batch * rate / prompt * (1 - hit_rate_0) / (1 - hit_rate_1)


@dataclass(frozen=True)
class Load:
    """What is asked of one replica: mean lengths in tokens, and how much varies.

    ``variation`` is c², the squared coefficient of variation of uncached tokens a request.
    """

    prompt_tokens: float
    output_tokens: float
    hit_rate: float
    variation: float = 0.0

    @property
    def uncached_tokens(self) -> float:
        return self.prompt_tokens * (1 - self.hit_rate)


@dataclass(frozen=True)
class Machine:
    """One replica: uncached tokens/s while it only prefills, and what a decode step costs (seconds).

    A step costs ``step_s``, and ``request_s`` and ``context_token_s`` for each decoding request and
    each token of its KV. ``running_max`` requests decode at most. The prefill rate is that of steps of
    ``chunk_tokens``, their ``step_s`` included; smaller ones are slower.
    """

    prefill_tokens_per_s: float
    step_s: float
    request_s: float = 0.0
    context_token_s: float = 0.0
    running_max: int = 128
    chunk_tokens: float = math.inf

    def prefill_s(self, load: Load, together: float) -> float:
        """Of one request, when so many are prefilled in one step and share what a step costs."""
        token_s = 1 / self.prefill_tokens_per_s - self.step_s / self.chunk_tokens
        return load.uncached_tokens * max(0.0, token_s) + self.step_s / together

    def most_together(self, load: Load) -> float:
        """Requests that fit into one chunk; at least one."""
        return max(1.0, self.chunk_tokens / max(1.0, load.uncached_tokens))

    def decode_step_s(self, load: Load, running: float) -> float:
        kv_tokens = load.prompt_tokens + load.output_tokens / 2
        return self.step_s + running * (self.request_s + kv_tokens * self.context_token_s)

    def request_rate(self, load: Load) -> float:
        """μ with decode: a full batch shares each of its steps. ValueError like ``service_rate``."""
        prefill_s = 1 / service_rate(self.prefill_tokens_per_s, load.prompt_tokens, load.hit_rate)
        steps = max(0.0, load.output_tokens - 1)
        decode_s = steps * self.decode_step_s(load, self.running_max) / self.running_max
        return 1 / (prefill_s + decode_s)

    def effective_tokens_per_s(self, load: Load) -> float:
        """R_eff of eq. 5: uncached tokens/s under overload, decode included."""
        return self.request_rate(load) * load.uncached_tokens


@dataclass(frozen=True)
class Plan:
    """One replica under one load at ``qps`` requests/s. Times in seconds, infinite at saturation."""

    load: Load
    machine: Machine
    qps: float

    @property
    def service_s(self) -> float:
        """E[S]: what a request takes of the replica."""
        return 1 / self.machine.request_rate(self.load)

    @property
    def utilization(self) -> float:
        """ρ = λ·E[S]."""
        return self.qps * self.service_s

    @property
    def wait_s(self) -> float:
        """E[W] ≈ ρ/(1 - ρ)·E[S](1 + c²)/2 (Pollaczek and Khinchine)."""
        rho = self.utilization
        return math.inf if rho >= 1 else rho / (1 - rho) * self._residual_s

    @property
    def _residual_s(self) -> float:
        return self.service_s * (1 + self.load.variation) / 2

    @property
    def ttft_s(self) -> float:
        """Waiting, the batch that was formed before, and its own."""
        return self.wait_s + 2 * self.service_s

    def ttft_percentile_s(self, percent: float) -> float:
        """The wait's tail taken as exponential: P(W > t) = ρ·exp(-t(1 - ρ)/(E[S](1 + c²)/2))."""
        rho = self.utilization
        if rho >= 1:
            return math.inf
        over = rho / (1 - percent / 100)
        tail_s = self._residual_s / (1 - rho) * math.log(over) if over > 1 else 0.0
        return tail_s + 2 * self.service_s

    @property
    def decode_s(self) -> float:
        """From the first token to the last: decode steps run only while nothing waits for prefill.

        First the requests that came meanwhile are prefilled, with all that follow them (a busy
        period); then every step is stretched by the share of time that prefill takes. As many requests
        share a step as makes the steps that there is time for produce what is asked.
        """
        steps = self.load.output_tokens - 1
        if steps <= 0:
            return 0.0
        if self.utilization >= 1:
            return math.inf
        running, together = 0.0, self.machine.most_together(self.load)
        decode_s = math.inf
        for _ in range(_STEPS):
            step_s = self.machine.decode_step_s(self.load, running)
            together = (together + self._prefilled_together(step_s, together)) / 2
            busy = self.qps * self.machine.prefill_s(self.load, together)
            if busy >= 1:
                return math.inf
            decode_s = (busy * self.ttft_s + steps * step_s) / (1 - busy)
            running = min(self.machine.running_max, self.qps * steps * step_s / (1 - busy))
        return decode_s

    def _prefilled_together(self, decode_step_s: float, together: float) -> float:
        """Requests of a prefill step, where it is known how long steps take.

        After each step the engine prefills whoever came meanwhile, and decodes if nobody did: a chain
        of two kinds of steps, with Poisson arrivals in each. Light loads prefill one by one, and pay
        the fixed cost of a step for each.
        """
        prefill_step_s = together * self.machine.prefill_s(self.load, together)
        nobody = math.exp(-min(_EXPONENT_MAX, self.qps * prefill_step_s))
        prefills_per_decode = -math.expm1(-self.qps * decode_step_s) / nobody
        came = self.qps * (decode_step_s / prefills_per_decode + prefill_step_s)
        return min(self.machine.most_together(self.load), max(1.0, came))

    def unfinished(self, requests: int) -> float:
        """Share of a replay of so many requests that is in the system when the last one arrives."""
        return self.qps * (self.ttft_s + self.decode_s) / requests

    def worth_of_a_point(self) -> Worth:
        """What one more point of hit rate (0.01) changes here."""
        better = replace(self.load, hit_rate=self.load.hit_rate + 0.01)
        then = replace(self, load=better)
        return Worth(
            service_rate=self.service_s / then.service_s - 1,
            wait_s=then.wait_s - self.wait_s,
            ttft_p99_s=then.ttft_percentile_s(99) - self.ttft_percentile_s(99),
        )


@dataclass(frozen=True)
class Worth:
    """Of one point of hit rate: relative gain of μ, and seconds of mean wait and P99 TTFT (negative)."""

    service_rate: float
    wait_s: float
    ttft_p99_s: float


def knee(load: Load, machine: Machine, requests: int = 2048) -> float:
    """The rate at which 97% of a replay's arrivals are answered while requests still arrive."""

    def keeps_up(qps: float) -> bool:
        return Plan(load, machine, qps).unfinished(requests) <= KNEE_UNFINISHED

    return _largest(keeps_up, machine.request_rate(load))


def _largest(holds: Callable[[float], bool], high: float) -> float:
    """The largest number below ``high`` up to which ``holds`` is true."""
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def replicas_for(
    load: Load,
    machine: Machine,
    qps: float,
    slo_s: float,
    *,
    percent: float = 99.0,
    replicas_max: int = 4096,
) -> int:
    """Fewest replicas, equally loaded, whose TTFT percentile is at most ``slo_s``.

    Assumes that the hit rate does not fall as requests are spread. ValueError if no number does.
    """
    for count in range(1, replicas_max + 1):
        if Plan(load, machine, qps / count).ttft_percentile_s(percent) <= slo_s:
            return count
    idle_s = Plan(load, machine, 0.0).ttft_percentile_s(percent)
    raise ValueError(f"no number of replicas gives {slo_s} s: an idle one takes {idle_s:.3f} s")
