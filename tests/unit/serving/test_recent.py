"""TTFT and queue wait of the last minutes, out of running totals."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from prism_ray.serving.meters import Counts, Meters
from prism_ray.serving.recent import Recent, quantile_s

from .actor_bench import Bench, hello, settle, ticket


def answered(meters: Meters, ttft_s: float, lane: str = "hot") -> None:
    meters.observe("prism_queue_wait_seconds", ttft_s / 2, lane)
    meters.observe("prism_ttft_seconds", ttft_s, lane)
    meters.observe("prism_ttft_queue_wait_seconds", ttft_s / 2, lane)
    meters.observe("prism_ttft_prefill_seconds", ttft_s / 2, lane)
    meters.observe("prism_ttft_first_token_seconds", 0.0, lane)
    meters.take()


class TestSteps:
    def test_each_step_has_what_was_counted_in_it(self) -> None:
        meters, recent = Meters(), Recent(step_s=10.0, steps=5)
        answered(meters, 100.0)  # before anyone looked
        recent.look(meters.total, 0.0)
        answered(meters, 1.0)
        answered(meters, 3.0, "cold")
        recent.look(meters.total, 10.0)
        recent.look(meters.total, 19.0)  # not over yet
        recent.look(meters.total, 20.0)
        answered(meters, 5.0)
        told = recent.describe(meters.total, 25.0)
        assert [step["ttft"]["count"] for step in told["steps"]] == [2, 0, 1]
        assert [step["ttft"]["mean_s"] for step in told["steps"]] == [2.0, None, 5.0]
        assert told["steps"][0]["ttft_terms"]["queue_wait_s"] == 1.0
        assert told["steps"][1]["ttft_terms"]["queue_wait_s"] is None
        assert [step["begin_age_s"] for step in told["steps"]] == [25.0, 15.0, 5.0]
        assert [step["end_age_s"] for step in told["steps"]] == [15.0, 5.0, 0.0]
        assert told["all"]["ttft"]["count"] == 3
        assert told["all"]["ttft"]["mean_s"] == 3.0
        assert told["all"]["lanes"] == {"hot": 2, "cold": 1}
        assert told["steps"][1]["lanes"] == {"hot": 0, "cold": 0}

    def test_it_is_bounded_and_forgets_what_is_long_ago(self) -> None:
        meters, recent = Meters(), Recent(step_s=10.0, steps=5)
        for step in range(100):
            answered(meters, 1.0)
            recent.look(meters.total, 10.0 * step)
        told = recent.describe(meters.total, 991.0)
        assert len(told["steps"]) == 6
        assert told["all"]["ttft"]["count"] == 5
        told = recent.describe(meters.total, 5000.0)  # nobody looked for a long time
        assert [step["ttft"]["count"] for step in told["steps"]] == []
        assert told["all"]["ttft"]["count"] == 0

    def test_nothing_counted_is_none(self) -> None:
        told = Recent().describe(Counts(), 3.0)
        assert told["all"]["queue_wait"] == {"count": 0, "mean_s": None, "p95_s": None}


class TestQuantile:
    def test_it_is_linear_inside_a_bucket(self) -> None:
        bounds = (1.0, 2.0, 4.0)
        assert quantile_s(bounds, [0, 10, 0, 0], 0.5) == 1.5
        assert quantile_s(bounds, [5, 5, 10, 0], 0.95) == pytest.approx(3.8)
        assert quantile_s(bounds, [5, 0, 5, 0], 0.5) == 1.0

    def test_above_all_bounds_it_is_the_last_one(self) -> None:
        assert quantile_s((1.0, 2.0), [0, 0, 3], 0.95) == 2.0
        assert quantile_s((1.0, 2.0), [0, 0, 0], 0.95) is None


class TestActor:
    async def test_its_state_has_the_last_decisions_newest_first(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            for name in ("a", "b", "c"):
                await bench.submit(name)
                await bench.report("r", name)
            state = await bench.actor.state(2)
        assert [d["request_id"] for d in state["decisions"]] == ["c", "b"]
        assert all(d["reason"] for d in state["decisions"])

    async def test_once_a_second_tenant_is_known_no_decision_is_told(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a")
            other = replace(ticket("b"), tenant=b"other")
            await bench.actor.submit(other, 0.0, None, False)
            state = await bench.actor.state()
        assert state["window"]["tenants"] == 2
        assert state["decisions"] is None

    async def test_its_state_has_the_waits_of_the_last_minutes(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            bench.actor._telemetry.look(bench.now)
            await bench.submit("a")
            bench.actor._telemetry.meters.take()
            bench.now += 5.0
            told = (await bench.actor.state())["recent"]
        assert told["all"]["queue_wait"]["count"] == 1
        assert told["all"]["begin_age_s"] == 5.0

    async def test_its_state_has_how_long_the_oldest_waits(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            assert (await bench.actor.state())["oldest_wait_s"] is None
            await bench.actor.replica_gone("r")
            calls = [
                asyncio.ensure_future(bench.actor.submit(ticket(name), waited_s, None, True))
                for name, waited_s in (("a", 2.0), ("b", 7.0), ("c", 0.0))
            ]
            await settle()
            bench.now += 0.5
            assert (await bench.actor.state())["oldest_wait_s"] == 7.5
            for call in calls:
                call.cancel()

    async def test_a_replica_has_its_hit_rate_once_it_was_told(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            (replica,) = (await bench.actor.state())["replicas"]
            assert replica["hit_rate"] is None
