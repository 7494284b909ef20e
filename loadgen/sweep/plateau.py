"""The plateau of a profile: uncached prompt tokens/s under overload, and the cost that leads to one.

The paper gives no step costs, only where its engine saturates; a profile is fitted to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadgen.simulate import Run, SimSpec, run
from loadgen.traces import make_trace
from prism_ray.engine.profile import Profile, load_profile

FIT_STEPS = 8
FIT_TOLERANCE = 1e-3


def plateau(spec: SimSpec, seeds: Sequence[int]) -> float:
    """Mean over seeds of uncached prompt tokens/s, from the first arrival to the last answer.

    The spec's rate must be one that its replicas cannot keep up with.
    """
    rates = []
    for seed in seeds:
        trace = make_trace(spec.trace, seed, spec.requests, **spec.trace_options)
        rates.append(_uncached_per_s(run(replace(spec, seed=seed), trace)))
    return sum(rates) / len(rates)


def _uncached_per_s(done: Run) -> float:
    uncached = sum(s.ticket.skeleton.prompt_tokens - s.cached_tokens for s in done.served)
    last_s = max(s.finished_s or 0.0 for s in done.served)
    return uncached / (last_s - done.arrivals_s[0])


def fit_new_token_s(spec: SimSpec, target_tokens_per_s: float, seeds: Sequence[int]) -> Profile:
    """The spec's profile with the cost of a prefilled token under which its plateau is the target.

    Everything else that a step costs stays as it is. Raises ValueError if no cost above zero does.
    """
    profile = load_profile(spec.profile)
    cost = replace(profile.cost, **spec.cost_options)
    new_token_s = cost.new_token_s
    for _ in range(FIT_STEPS):
        options = {**spec.cost_options, "new_token_s": new_token_s}
        rate = plateau(replace(spec, cost_options=options), seeds)
        if abs(rate / target_tokens_per_s - 1) < FIT_TOLERANCE:
            break
        # What a token costs beside its own prefill hardly depends on it.
        new_token_s += 1 / target_tokens_per_s - 1 / rate
        if new_token_s <= 0:
            raise ValueError(f"{spec.profile} cannot prefill {target_tokens_per_s:.0f} tokens/s")
    return replace(profile, cost=replace(cost, new_token_s=new_token_s))
