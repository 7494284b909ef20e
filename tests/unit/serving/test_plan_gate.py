from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from prism_ray.dispatch import Refusal
from prism_ray.model import Demand, DemandTable, Plan, PlanEntry
from prism_ray.serving.plan_gate import EntryKey, GateBroken, NotYourTurn, PlanGate

pytestmark = pytest.mark.virtual_time


class Bench:
    def __init__(self, body_wait_s: float = 0.02) -> None:
        self.voided: list[tuple[EntryKey, Refusal]] = []
        self.broken: list[str] = []
        self.owed = 0
        self.order: list[str] = []
        self.tables: list[DemandTable | None] = []
        self.gate = PlanGate(
            body_wait_s=body_wait_s,
            plan_wait_s=0.2,
            prefill_ahead_tokens=100,
            owed_tokens=lambda: self.owed,
            on_void=lambda key, reason: self.voided.append((key, reason)),
            on_broken=self.broken.append,
            clock=asyncio.get_running_loop().time,
        )

    def plan(self, *names: str, version: int = 1, epoch: str = "e") -> None:
        entries = tuple(PlanEntry(name, 0, 10) for name in names)
        self.gate.add_plan(
            Plan("r", epoch, version, entries, DemandTable(version, (Demand(b"s", 1.0),)))
        )

    async def body(self, name: str, delay_s: float = 0.0, submit_s: float = 0.0) -> str:
        await asyncio.sleep(delay_s)
        turn = await self.gate.enter(("e", name, 0), 10)
        await asyncio.sleep(submit_s)
        self.order.append(name)
        self.tables.append(turn.table)
        turn.submitted()
        return name


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(body_wait_s=0.2)
    bench.gate.start()
    yield bench
    await bench.gate.stop()


class TestPlanGate:
    async def test_bodies_are_submitted_in_plan_order_however_they_arrive(
        self, bench: Bench
    ) -> None:
        bench.plan("a", "b", "c")
        await asyncio.gather(bench.body("c"), bench.body("b", 0.02), bench.body("a", 0.04))
        assert bench.order == ["a", "b", "c"]

    async def test_the_next_turn_comes_only_when_the_last_was_submitted(self, bench: Bench) -> None:
        bench.plan("a", "b")
        await asyncio.gather(bench.body("a", submit_s=0.03), bench.body("b"))
        assert bench.order == ["a", "b"]

    async def test_a_body_may_arrive_before_its_plan(self, bench: Bench) -> None:
        early = asyncio.create_task(bench.body("a"))
        await asyncio.sleep(0.01)
        bench.plan("a")
        assert await early == "a"

    async def test_a_late_body_is_voided_and_sent_back_and_the_next_goes(self) -> None:
        bench = Bench(body_wait_s=0.01)
        bench.gate.start()
        bench.plan("late", "next")
        assert await bench.body("next") == "next"
        assert bench.voided == [(("e", "late", 0), Refusal.LATE_BODY)]
        with pytest.raises(NotYourTurn, match="late_body"):
            await bench.body("late")
        await bench.gate.stop()

    async def test_beyond_its_credit_a_replica_refuses(self, bench: Bench) -> None:
        bench.owed = 100
        bench.plan("a")
        with pytest.raises(NotYourTurn, match="over_credit"):
            await bench.body("a")
        assert bench.voided == [(("e", "a", 0), Refusal.OVER_CREDIT)]

    async def test_a_body_without_a_plan_is_sent_back_in_time(self, bench: Bench) -> None:
        with pytest.raises(NotYourTurn):
            await bench.body("unplanned")

    async def test_a_voided_entry_is_skipped_and_given_back_at_once(self, bench: Bench) -> None:
        bench.plan("a", "gone", "b")
        bench.gate.void(("e", "gone", 0))
        assert bench.voided == [(("e", "gone", 0), Refusal.CLIENT_LEFT)]
        await asyncio.gather(bench.body("a"), bench.body("b"))
        assert len(bench.voided) == 1
        assert bench.gate.in_line() == []

    async def test_a_client_that_leaves_in_line_holds_nobody_up(self, bench: Bench) -> None:
        bench.plan("a", "b", "c")
        second = asyncio.create_task(bench.body("b"))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        # Before its turn comes: its credit serves somebody else meanwhile.
        assert bench.voided == [(("e", "b", 0), Refusal.CLIENT_LEFT)]
        await asyncio.gather(bench.body("a"), bench.body("c"))
        assert bench.order == ["a", "c"]
        assert len(bench.voided) == 1
        assert bench.gate.in_line() == []

    async def test_a_client_that_leaves_during_its_submission_holds_nobody_up(
        self, bench: Bench
    ) -> None:
        bench.plan("a", "b")

        async def leave() -> None:
            turn = await bench.gate.enter(("e", "a", 0), 10)
            try:
                await asyncio.sleep(10)
            finally:
                turn.submitted()

        first = asyncio.create_task(leave())
        await asyncio.sleep(0.01)
        first.cancel()
        assert await bench.body("b") == "b"

    async def test_a_client_that_leaves_as_its_turn_comes_is_given_back(self, bench: Bench) -> None:
        bench.plan("a", "b")
        second = asyncio.create_task(bench.gate.enter(("e", "b", 0), 10))
        await asyncio.sleep(0.01)
        turn = await bench.gate.enter(("e", "a", 0), 10)
        turn.submitted()
        for _ in range(20):
            if not bench.gate.in_line():
                break
            await asyncio.sleep(0)
        assert not second.done()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert second.cancelled()
        assert bench.voided == [(("e", "b", 0), Refusal.CLIENT_LEFT)]
        bench.plan("c", version=2)
        assert await bench.body("c") == "c"

    async def test_a_client_that_leaves_as_its_plan_comes_is_given_back(self, bench: Bench) -> None:
        early = asyncio.create_task(bench.body("a"))
        await asyncio.sleep(0.01)
        bench.plan("a", "b")
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
        assert early.cancelled()
        assert bench.voided == [(("e", "a", 0), Refusal.CLIENT_LEFT)]
        await bench.body("b")
        assert bench.order == ["b"]

    async def test_a_plan_that_comes_as_patience_ends_is_in_time(self, bench: Bench) -> None:
        asyncio.get_running_loop().call_later(0.2, bench.plan, "a")
        assert await bench.body("a") == "a"
        assert bench.voided == []

    async def test_direct_requests_need_no_plan(self, bench: Bench) -> None:
        turn = await bench.gate.enter(("", "direct", 0), 10)
        assert turn.table is None
        turn.submitted()

    async def test_patience_grows_with_the_lag_of_recent_bodies(self) -> None:
        bench = Bench(body_wait_s=0.005)
        bench.gate.start()
        sent_back: list[bool] = []
        for number in range(8):
            late, prompt = f"late{number}", f"prompt{number}"
            bench.plan(late, prompt, version=number + 1)
            results = await asyncio.gather(
                bench.body(late, delay_s=0.02), bench.body(prompt), return_exceptions=True
            )
            sent_back.append(isinstance(results[0], NotYourTurn))
        # After 5 ms, after 12.8 ms; the third is given 21.
        assert sent_back == [True] * 2 + [False] * 6
        assert bench.voided == [(("e", f"late{n}", 0), Refusal.LATE_BODY) for n in range(2)]
        kept = [name for n in range(2, 8) for name in (f"late{n}", f"prompt{n}")]
        assert bench.order == ["prompt0", "prompt1", *kept]
        await bench.gate.stop()

    async def test_a_late_body_is_waited_for_while_no_other_could_go(self) -> None:
        bench = Bench(body_wait_s=0.005)
        bench.gate.start()
        bench.plan("slow")
        assert await bench.body("slow", delay_s=0.1) == "slow"
        assert bench.voided == []
        await bench.gate.stop()

    async def test_a_body_that_never_comes_gives_its_credit_back(self) -> None:
        bench = Bench(body_wait_s=0.005)
        bench.gate.start()
        bench.plan("never")
        await asyncio.sleep(0.3)
        assert [reason for _, reason in bench.voided] == [Refusal.LATE_BODY]
        assert bench.gate.in_line() == []
        await bench.gate.stop()

    async def test_voiding_the_entry_that_is_waited_for_lets_the_line_go_on(self) -> None:
        bench = Bench(body_wait_s=0.005)
        bench.gate.start()
        bench.plan("gone")
        await asyncio.sleep(0.02)
        bench.gate.void(("e", "gone", 0))
        bench.plan("b", version=2)
        assert await bench.body("b") == "b"
        await bench.gate.stop()

    async def test_the_first_submitted_request_of_a_plan_takes_its_table_along(
        self, bench: Bench
    ) -> None:
        bench.plan("gone", "a", "b")
        bench.gate.void(("e", "gone", 0))
        await asyncio.gather(bench.body("a"), bench.body("b"))
        assert [t.version if t else None for t in bench.tables] == [1, None]

    async def test_a_fault_of_its_own_leaves_nobody_waiting(self, bench: Bench) -> None:
        def fail() -> int:
            raise RuntimeError("a fault")

        bench.gate._owed_tokens = fail
        bench.plan("a", "b")
        early = asyncio.create_task(bench.body("unplanned"))
        results = await asyncio.gather(
            bench.body("b"), bench.body("a"), early, return_exceptions=True
        )
        assert [type(result) for result in results] == [GateBroken] * 3
        with pytest.raises(GateBroken, match="a fault"):
            await bench.body("later")
        assert len(bench.broken) == 1
        assert bench.gate.in_line() == []
