"""The live page and its text of real actors: whatever policy decides, their state can be shown."""

from __future__ import annotations

import json

import pytest

from prism_ray.policies import POLICIES
from prism_ray.telemetry.live_page import page
from prism_ray.telemetry.live_page_text import text

from .actor_bench import Bench, hello, settle


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_every_policys_state_is_shown(policy: str) -> None:
    async with Bench(scheduler={"policy": policy, "round_interval_s": 0.0}) as bench:
        await bench.actor.hello(hello("replica-1"))
        await bench.submit("shared-1")
        await bench.report("replica-1", "shared-1", snapshot=True)
        await bench.actor.hello(hello("replica-2"))
        waiting = [bench.submit(f"shared-{n}") for n in range(2, 30)]
        await settle()
        state = json.loads(json.dumps(await bench.actor.state()))
        for call in waiting:
            call.cancel()
    assert state["decisions"], policy
    rule, _, _ = state["decisions"][0]["reason"].partition(";")
    for shown in (page(state), text(state)):
        assert "replica-1" in shown
        assert "shared-1" in shown
        assert rule in shown.replace("&gt;", ">").replace("&lt;", "<")
