"""A replica's line to QAS over a fake actor: nothing that the engine did is dropped on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from prism_ray.dispatch import Refusal
from prism_ray.engine.base import EngineLoad
from prism_ray.model import Completion, DemandTable, Outcome, Plan, PlanEntry
from prism_ray.serving import replica_channel
from prism_ray.serving.messages import (
    EntryRefused,
    Heard,
    Hello,
    PlanDelivery,
    QasAddress,
    Report,
    Told,
)
from prism_ray.serving.replica_channel import ReplicaChannel, ReplicaTotals

from .actor_bench import CAPACITY
from .fake_ray import FakeActor, unreachable

pytestmark = pytest.mark.virtual_time


class Qas:
    """Knows the replica's present life until told to forget it."""

    def __init__(self) -> None:
        self.life: str | None = None
        self.plans_out: list[Plan] = []
        self.news = asyncio.Event()
        self.reports: list[Report] = []
        self.answer = Heard.TAKEN
        self.queued_tokens = 0

    async def hello(self, hello: Hello) -> str:
        self.life = hello.incarnation
        return "e"

    async def plans(self, replica: str, incarnation: str, read: int) -> PlanDelivery | None:
        if incarnation != self.life:
            return None
        self.plans_out = [p for p in self.plans_out if p.version > read]
        if not self.plans_out:
            self.news.clear()
            await self.news.wait()
        return PlanDelivery("e", tuple(self.plans_out)) if incarnation == self.life else None

    async def report(self, report: Report) -> Told:
        if report.incarnation != self.life:
            return Told(Heard.UNKNOWN)
        self.reports.append(report)
        return Told(self.answer, self.queued_tokens if report.snapshot else None)

    def send(self, version: int, *names: str) -> None:
        entries = tuple(PlanEntry(name, 0, 1) for name in names)
        self.plans_out.append(Plan("r", "e", version, entries, DemandTable(0)))
        self.news.set()

    def forget(self) -> None:
        self.life = None
        self.news.set()

    @property
    def completed(self) -> list[str]:
        return [c.request_id for report in self.reports for c in report.completed]


class Gate:
    def __init__(self) -> None:
        self.versions: list[int] = []

    def add_plan(self, plan: Plan) -> None:
        self.versions.append(plan.version)


class Engine:
    def __init__(self) -> None:
        self.snapshots = 0

    async def load(self) -> Any:
        raise RuntimeError("it does not say")

    async def snapshot_cache(self) -> None:
        self.snapshots += 1


class World:
    def __init__(self) -> None:
        self.qas = Qas()
        self.actor = FakeActor(self.qas)
        self.gate = Gate()
        self.closed: list[str] = []
        self.engine = Engine()
        self.channel = ReplicaChannel(
            QasAddress("qas", "e"),
            Hello("r", "engine", "m", CAPACITY),
            gate=self.gate,  # type: ignore[arg-type]
            in_flight=list,
            totals=ReplicaTotals(),
            engine=self.engine,  # type: ignore[arg-type]
            on_closed=lambda epoch, _: self.closed.append(epoch),
            find_actor=lambda _: self.actor,
            clock=asyncio.get_running_loop().time,
        )

    def finish(self, name: str) -> None:
        self.channel.completed(Completion(name, 0, Outcome.FINISHED))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not condition():  # noqa: ASYNC110 - conditions of other objects, no events
                await asyncio.sleep(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.channel.open()
    yield world
    world.channel.close()
    await asyncio.sleep(0)


async def test_a_life_is_the_engines_and_the_number_of_the_hello(world: World) -> None:
    await world.until(lambda: world.qas.life == "engine.1")


async def test_events_go_out_though_the_engine_does_not_say_its_load(world: World) -> None:
    world.finish("a")
    await world.until(lambda: world.qas.completed == ["a"])


async def test_reports_survive_a_qas_that_cannot_be_reached_for_a_while(world: World) -> None:
    await world.until(lambda: bool(world.qas.reports))
    world.actor.failures = [unreachable() for _ in range(4)]
    for name in "abc":
        world.finish(name)
        await asyncio.sleep(0.02)
    await world.until(lambda: len(world.qas.completed) == 3)
    assert world.qas.completed == ["a", "b", "c"]
    assert world.qas.life == "engine.1", "one life: nothing was started over"
    numbers = [report.sequence for report in world.qas.reports]
    assert numbers == list(range(1, len(numbers) + 1))
    assert not world.closed


async def test_a_plan_that_comes_twice_is_put_in_line_once(world: World) -> None:
    world.qas.send(1, "a")
    await world.until(lambda: world.gate.versions == [1])
    world.qas.plans_out = []
    world.qas.send(1, "a")
    world.qas.send(2, "b")
    await world.until(lambda: 2 in world.gate.versions)
    assert world.gate.versions == [1, 2]


async def test_one_that_qas_forgot_says_hello_again_and_counts_plans_anew(world: World) -> None:
    world.qas.send(1, "a")
    await world.until(lambda: world.gate.versions == [1])
    world.qas.plans_out = []
    world.qas.forget()
    await world.until(lambda: world.qas.life == "engine.2")
    world.qas.send(1, "b")
    await world.until(lambda: world.gate.versions == [1, 1])
    world.finish("b")
    await world.until(lambda: "b" in world.qas.completed)


class TestCacheNews:
    async def test_they_go_out_in_order_and_once(self, world: World) -> None:
        for message in (b"1", b"2", b"3"):
            world.channel.cache_told(message)
            await asyncio.sleep(0.02)
        world.finish("end")
        await world.until(lambda: "end" in world.qas.completed)
        told = [message for report in world.qas.reports for message in report.cache]
        assert told == [b"1", b"2", b"3"]

    async def test_a_snapshot_that_does_not_come_is_asked_for_again(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replica_channel, "SNAPSHOT_AGAIN_S", 0.5)
        world.qas.answer = Heard.SNAPSHOT_WANTED
        for _ in range(5):
            world.channel.cache_told(b"")
            await asyncio.sleep(0.01)
        assert world.engine.snapshots == 1
        await world.until(lambda: world.engine.snapshots == 2)
        world.qas.answer = Heard.TAKEN
        await asyncio.sleep(10.0)
        assert world.engine.snapshots == 2

    async def test_those_for_a_qas_that_does_not_answer_are_bounded(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replica_channel, "CACHE_NEWS_MAX", 10)
        for number in range(25):
            world.channel.cache_told(b"%d" % number)
        await world.until(lambda: any(report.cache for report in world.qas.reports))
        told = [message for report in world.qas.reports for message in report.cache]
        assert told == [b"20", b"21", b"22", b"23", b"24"]


async def test_the_channel_ends_with_its_qas(world: World) -> None:
    await world.until(lambda: bool(world.qas.reports))
    world.actor.dead.set()
    await world.until(lambda: world.closed == ["e"])


async def test_with_a_dead_engine_the_replica_falls_silent(world: World) -> None:
    await world.until(lambda: bool(world.qas.reports))
    world.channel.close()
    await asyncio.sleep(0.05)
    heard = len(world.qas.reports)
    world.finish("a")
    await asyncio.sleep(10.0)
    assert len(world.qas.reports) == heard


async def test_the_share_of_the_window_is_known_for_a_while_after_it_was_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load() -> EngineLoad:
        return EngineLoad(running=1)

    assert world.channel.queued_tokens is None
    world.qas.queued_tokens = 700
    monkeypatch.setattr(world.engine, "load", load)
    await world.until(lambda: world.channel.queued_tokens == 700)
    world.actor.running.clear()  # QAS stands still
    await asyncio.sleep(replica_channel.QUEUED_KNOWN_S - replica_channel.SNAPSHOT_S)
    assert world.channel.queued_tokens == 700
    await asyncio.sleep(2 * replica_channel.SNAPSHOT_S)
    assert world.channel.queued_tokens is None


class TestOverCredit:
    async def test_what_others_hold_is_told_with_the_refusal(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def load() -> EngineLoad:
            return EngineLoad(running=1)

        monkeypatch.setattr(replica_channel, "SNAPSHOT_S", 3600.0)
        monkeypatch.setattr(world.engine, "load", load)
        world.finish("a")
        await world.until(lambda: world.qas.completed == ["a"])
        await asyncio.sleep(0.7)  # the snapshot that was due before
        world.channel.refused(EntryRefused("b", 0, str(Refusal.LATE_BODY)))
        world.channel.refused(EntryRefused("c", 0, str(Refusal.OVER_CREDIT)))
        await world.until(lambda: len(refusals(world)) == 2)
        assert refusals(world)[-1].snapshot is not None
        told = len(world.qas.reports)
        world.channel.refused(EntryRefused("d", 0, str(Refusal.LATE_BODY)))
        await world.until(lambda: len(world.qas.reports) > told)
        assert world.qas.reports[-1].snapshot is None


def refusals(world: World) -> list[Report]:
    """The report of each refusal."""
    return [report for report in world.qas.reports for _ in report.refused]
