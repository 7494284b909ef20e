"""Every policy in the QAS actor of the application: all are decided once, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from prism_ray.model import Decision
from prism_ray.scheduling import POLICIES

from .actor_bench import Bench, hello, settle

NAMES = [f"{'shared' if n % 3 else 'own'}-{n}" for n in range(12)]


@pytest.mark.parametrize("policy", list(POLICIES))
async def test_a_policy_serves_the_application(policy: str) -> None:
    async with Bench(scheduler={"policy": policy, "round_interval_s": 0.0}) as bench:
        for replica in ("r0", "r1"):
            await bench.actor.hello(hello(replica))
        waiting = {name: bench.submit(name) for name in NAMES}
        decided: dict[str, Decision] = {}
        while waiting:
            await settle()
            now = {name: call for name, call in waiting.items() if call.done()}
            assert now, f"{sorted(waiting)} wait for nothing"
            for name, call in now.items():
                del waiting[name]
                decision = await call
                assert isinstance(decision, Decision)
                decided[name] = decision
            for name in now:
                assert await bench.report(decided[name].replica, name)
            bench.now += 0.1
        assert {decision.request_id for decision in decided.values()} == set(NAMES)
        assert {decision.replica for decision in decided.values()} == {"r0", "r1"}
        entries = []
        for replica in ("r0", "r1"):
            delivery = await asyncio.wait_for(bench.plans(replica), 1.0)
            assert delivery is not None
            entries += [entry.request_id for plan in delivery.plans for entry in plan.entries]
        assert sorted(entries) == sorted(NAMES)
        books = await bench.check()
        assert books["sent"] == books["waiting"] == books["futures"] == 0
        state = await bench.actor.state()
        assert state["policy"] == policy
