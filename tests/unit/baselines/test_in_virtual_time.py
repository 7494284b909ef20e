"""Every policy serves a small trace on two replicas in virtual time: nobody is lost, reuse shows."""

from __future__ import annotations

import pytest

from loadgen.simulate import SimSpec, run
from loadgen.traces import make_trace

from .test_every_peer import PEERS

TRACE = make_trace("zipf_hotspot", 5, 160)


def hit_rate(policy: str) -> float:
    """Of a run above the knee of two replicas."""
    spec = SimSpec(policy=policy, qps=150.0, requests=160, replicas=2, seed=5)
    served = run(spec, TRACE).served
    assert len(served) == 160
    assert all(request.finished_s is not None for request in served)
    tokens = sum(request.ticket.skeleton.prompt_tokens for request in served)
    return sum(request.cached_tokens for request in served) / tokens


@pytest.mark.parametrize("policy", PEERS)
def test_a_policy_serves_a_trace_to_its_end(policy: str) -> None:
    assert hit_rate(policy) > 0.15, "the system prefix alone is a fifth of a prompt"


def test_policies_that_rewrite_orders_reuse_more_than_those_that_do_not() -> None:
    native = hit_rate("fcfs")
    for policy in ("front-alignment", "contextpilot", "prism"):
        assert hit_rate(policy) > native + 0.02
