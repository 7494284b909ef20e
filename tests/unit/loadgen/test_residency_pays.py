"""Predictions from what engines say are nearer to the truth than those from dispatches alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.traces.zipf_hotspot import ZipfHotspot
from loadgen.virtual import Arrival, VirtualCluster
from prism_ray.dispatch import Dispatch, Dispatcher
from prism_ray.engine.limits import StepParams
from prism_ray.engine.profile import load_profile
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler


class Watched(Dispatcher):
    """Remembers what it predicted of each request."""

    def round(self, now_s: float) -> list[Dispatch]:
        dispatches = super().round(now_s)
        for dispatch in dispatches:
            for decision in dispatch.decisions:
                predicted[decision.request_id] = decision.predicted_cached_tokens
        return dispatches


predicted: dict[str, int] = {}


def mispredicted(pool_tokens: int, *, tells_cache: bool) -> tuple[int, int]:
    """Cached tokens mispredicted in all, and cached."""
    predicted.clear()
    dispatcher = Watched(make_scheduler("qas"), make_placement("single"), "e")
    params = StepParams(pool_tokens=pool_tokens, retention="dart")
    cost = load_profile("a800-qwen3-4b").cost
    cluster = VirtualCluster(dispatcher, params, cost, tells_cache=tells_cache)
    tickets = ZipfHotspot(seed=1).tickets()
    arrivals = [
        Arrival(replace(next(tickets), arrival_s=n / 40, max_new_tokens=16), 16) for n in range(400)
    ]
    served = cluster.run(arrivals)
    off = sum(abs(predicted[name] - s.cached_tokens) for name, s in served.items())
    return off, sum(s.cached_tokens for s in served.values())


@pytest.mark.parametrize("pool_tokens", [20_000, 60_000])
def test_they_are(pool_tokens: int) -> None:
    by_dispatches, cached = mispredicted(pool_tokens, tells_cache=False)
    by_truth, cached_too = mispredicted(pool_tokens, tells_cache=True)
    assert by_truth / cached_too < 0.8 * by_dispatches / cached
