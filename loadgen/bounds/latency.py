"""The latency that even load and the most hits would leave: a floor for placements. Runs nothing.

A fluid estimate, for a step-model engine that prefills first and decodes all that it has admitted:
every replica gets the same work at every moment, nobody queues, a prefill batch costs only its
tokens. What is lost to chance, to imbalance and to batches is above it; what no placement can win
(tokens that somebody has to compute, and decoding, whose steps take as long as what is decoded
together) is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from prism_ray.engine.cost import CostModel


@dataclass(frozen=True)
class LatencyFloor:
    """Seconds from arrival to the last token: mean and P99 over requests; infinite if the rate cannot
    be served. ``prefill_share`` is the part of a replica's time that prefill takes, ``decoding``
    how many requests a replica decodes together."""

    mean_s: float
    p99_s: float
    prefill_share: float
    decoding: float


def latency_floor(
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    hit_rate: float,
    replica_rps: float,
    cost: CostModel,
) -> LatencyFloor:
    """Of requests of these lengths at ``replica_rps`` requests/s for each replica.

    ``hit_rate`` is the share of prompt tokens that is cached, by a bound: each request misses the
    rest of its own length. ValueError for no requests.
    """
    if not prompt_tokens or len(prompt_tokens) != len(output_tokens):
        raise ValueError("a floor needs as many output lengths as prompts, and at least one")
    prompts = np.asarray(prompt_tokens, dtype=float)
    # The prefill's batch makes the first token.
    steps = np.maximum(np.asarray(output_tokens, dtype=float) - 1.0, 0.0)
    prefills_s = prompts * (1.0 - hit_rate) * cost.new_token_s
    prefill_share = replica_rps * float(prefills_s.mean())
    total_steps = float(steps.sum())
    context = float(np.dot(steps, prompts + steps / 2)) / total_steps if total_steps else 0.0
    neighbour_s = cost.decode_request_s + cost.context_token_s * context
    # n = (tokens/s) · step(n) / (1 - prefill share), step(n) = base + n · neighbour.
    pressure = (
        replica_rps * float(steps.mean()) / (1.0 - prefill_share) if prefill_share < 1 else inf
    )
    if pressure * neighbour_s >= 1.0:
        return LatencyFloor(inf, inf, prefill_share, inf)
    decoding = pressure * cost.base_s / (1.0 - pressure * neighbour_s)
    step_s = cost.base_s + max(1.0, decoding) * neighbour_s
    latencies_s = cost.base_s + prefills_s + steps * step_s / (1.0 - prefill_share)
    p99_s = float(np.percentile(latencies_s, 99))
    return LatencyFloor(float(latencies_s.mean()), p99_s, prefill_share, decoding)
