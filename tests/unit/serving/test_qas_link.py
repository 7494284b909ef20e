"""An ingress's line to QAS over a fake actor: what happens when it dies, stalls or knows no replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from prism_ray.model import Decision, Lane, Ticket
from prism_ray.serving.membership import Membership
from prism_ray.serving.messages import QasAddress, QasStatus, SubmitError, Undecided
from prism_ray.serving.meters import Counts
from prism_ray.serving.qas_link import HEARTBEAT_S, QasLink, QasLost, QasUnavailable

from .actor_bench import ticket
from .fake_ray import FakeActor

pytestmark = pytest.mark.virtual_time

TIMEOUT_S = 1.0


class Qas:
    """Decides when told to; knows the replicas that were attached to it."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.attached: set[str] = set()
        self.answers: list[Undecided] = []
        self.open = asyncio.Event()

    async def address(self) -> QasAddress:
        return QasAddress("qas", self.epoch)

    async def ping(self, ingress: str, members: frozenset[str]) -> QasStatus:
        names = tuple(sorted(self.attached))
        return QasStatus(self.epoch, names, 0, 0, 0, names)

    async def submit(
        self, asked: Ticket, waited_s: float, deadline_in_s: float | None, at_head: bool
    ) -> Decision | Undecided:
        if self.answers:
            return self.answers.pop(0)
        await self.open.wait()
        return Decision(
            asked.request_id, asked.attempt, self.epoch, "r", 1, 0, (), Lane.COLD, waited_s, 0
        )

    async def cancel(self, request_id: str, attempt: int) -> None: ...

    async def replica_gone(self, replica: str) -> None: ...

    async def replica_doubted(self, replica: str) -> None: ...

    async def tune(self, user_config: dict[str, Any]) -> None: ...

    async def count(self, counts: Counts) -> None: ...


class Handle:
    """The replicas' Serve handle: attaching takes effect in ``world.qas``, unless it is refused."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.target = ""

    def options(self, session_id: str) -> Handle:
        handle = Handle(self.world)
        handle.target = session_id
        return handle

    @property
    def attach(self) -> Handle:
        return self

    @property
    def name_of(self) -> Handle:
        return self

    def remote(self, address: QasAddress | None = None) -> Any:
        return asyncio.ensure_future(self._attach(address))

    async def _attach(self, address: QasAddress | None) -> None:
        self.world.attach_calls += 1
        if address is not None and self.world.replicas_answer:
            assert address.epoch == self.world.qas.epoch
            self.world.qas.attached.add(self.target)


class World:
    def __init__(self) -> None:
        self.attach_calls = 0
        self.replicas_answer = True
        self.membership = Membership()
        self.membership.set(frozenset({"r"}))
        self.exists = True
        self.restart("one")
        self.link = QasLink(
            Handle(self),  # type: ignore[arg-type]
            self.membership,
            TIMEOUT_S,
            ingress="me",
            get_actor=self.find,
            clock=asyncio.get_running_loop().time,
        )

    def restart(self, epoch: str) -> None:
        self.qas = Qas(epoch)
        self.actor = FakeActor(self.qas)

    def find(self, _: str) -> FakeActor:
        if not self.exists:
            raise ValueError
        return self.actor

    def submit(self, attempt: int = 0, waited_s: float = 0.0) -> asyncio.Task[Any]:
        return asyncio.ensure_future(
            self.link.submit(ticket("a", attempt), waited_s, None, attempt > 0)
        )

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - conditions of other objects, no events
                await asyncio.sleep(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.link.start()
    yield world
    for task in world.link._tasks:
        task.cancel()
    await asyncio.gather(*world.link._tasks, return_exceptions=True)


async def test_replicas_are_attached_and_tickets_decided(world: World) -> None:
    world.qas.open.set()
    decision = await asyncio.wait_for(world.submit(), 2.0)
    assert decision.epoch == "one"
    assert world.qas.attached == {"r"}
    assert world.actor.called("ping")[0] == ("me", frozenset({"r"}))


async def test_a_ticket_of_a_dead_qas_is_lost_and_the_next_one_waits_for_the_new_qas(
    world: World,
) -> None:
    await world.until(lambda: world.link.up)
    waiting = world.submit()
    await world.until(lambda: bool(world.actor.called("submit")))
    old, world.exists = world.actor, False
    old.dead.set()
    with pytest.raises(QasLost):
        await waiting
    again = world.submit(attempt=1, waited_s=7.0)
    await asyncio.sleep(0.05)
    assert not again.done(), "it waits for the timeout before anything is dispatched directly"
    world.restart("two")
    world.qas.open.set()
    world.exists = True
    decision = await asyncio.wait_for(again, 5.0)
    assert decision.epoch == "two"
    waited_s = 7.0 + HEARTBEAT_S
    assert decision.queue_s == pytest.approx(waited_s, abs=0.01), (
        "its age came along, and the wait for QAS"
    )
    assert world.qas.attached == {"r"}


async def test_without_a_qas_for_the_timeout_requests_go_directly_until_it_is_back(
    world: World,
) -> None:
    await world.until(lambda: world.link.up)
    old, world.exists = world.actor, False
    old.dead.set()
    with pytest.raises(QasLost):
        await world.submit()
    with pytest.raises(QasUnavailable):
        await asyncio.wait_for(world.submit(attempt=1), 5.0)
    assert world.link.down
    world.restart("two")
    world.exists = True
    await world.until(lambda: world.link.up)


async def test_a_ticket_with_a_qas_that_stands_still_is_cancelled_there(world: World) -> None:
    await world.until(lambda: world.link.up)
    waiting = world.submit()
    await world.until(lambda: bool(world.actor.called("submit")))
    world.actor.running.clear()
    with pytest.raises(QasUnavailable):
        await asyncio.wait_for(waiting, 5.0)
    world.actor.running.set()
    await world.until(lambda: world.actor.called("cancel") == [("a", 0)])
    await world.until(lambda: world.link.up)


async def test_a_ticket_whose_client_left_is_cancelled(world: World) -> None:
    await world.until(lambda: world.link.up)
    waiting = world.submit(attempt=3)
    await world.until(lambda: bool(world.actor.called("submit")))
    waiting.cancel()
    await world.until(lambda: world.actor.called("cancel") == [("a", 3)])


async def test_a_qas_that_knows_no_replica_while_serve_runs_some_cannot_be_used(
    world: World,
) -> None:
    await world.until(lambda: world.link.up)
    world.replicas_answer = False
    old = world.actor
    world.restart("two")
    old.dead.set()
    await world.until(lambda: world.link.down)
    world.replicas_answer = True
    await world.until(lambda: world.link.up)


async def test_a_replica_that_qas_forgot_is_attached_again(world: World) -> None:
    await world.until(lambda: world.qas.attached == {"r"})
    world.qas.attached.clear()
    await world.until(lambda: world.qas.attached == {"r"})


async def test_a_replica_that_does_not_attach_is_not_asked_without_pause(world: World) -> None:
    world.replicas_answer = False
    await asyncio.sleep(10.0)
    assert 8 <= world.attach_calls <= 11


async def test_no_replica_is_final_only_when_serve_runs_none(world: World) -> None:
    await world.until(lambda: world.link.up)
    world.qas.answers = [Undecided(SubmitError.NO_REPLICA)]
    with pytest.raises(QasLost):
        await world.submit()
    await world.until(lambda: world.link.up)
    world.membership.set(frozenset())
    world.qas.answers = [Undecided(SubmitError.NO_REPLICA)]
    answer = await asyncio.wait_for(world.submit(), 1.0)
    assert answer == Undecided(SubmitError.NO_REPLICA)


async def test_an_ingress_that_was_forgotten_submits_anew(world: World) -> None:
    await world.until(lambda: world.link.up)
    world.qas.answers = [Undecided(SubmitError.FORGOTTEN)]
    with pytest.raises(QasLost):
        await world.submit()
    assert world.link.up, "QAS is as good as before"
    world.qas.open.set()
    assert isinstance(await world.submit(attempt=1), Decision)


async def test_a_user_config_reaches_every_qas_once(world: World) -> None:
    await world.until(lambda: world.link.up)
    wanted = {"limits": {"n": 2}}
    world.link.tune(wanted)
    await world.until(lambda: world.actor.called("tune") == [(wanted,)])
    await asyncio.sleep(10.0)
    assert world.actor.called("tune") == [(wanted,)]
    old = world.actor
    world.restart("two")
    old.dead.set()
    await world.until(lambda: world.actor.called("tune") == [(wanted,)])


async def test_qas_is_told_whether_a_replica_is_dead_or_only_in_doubt(world: World) -> None:
    await world.until(lambda: world.link.up)
    world.link.report_gone("a")
    world.link.report_doubt("b")
    await world.until(lambda: world.actor.called("replica_doubted") == [("b",)])
    assert world.actor.called("replica_gone") == [("a",)]


async def test_counts_are_taken_only_while_qas_answers(world: World) -> None:
    counts = Counts({("prism_requests_total", ("hot", "ok")): 1})
    assert not world.link.count(counts), "nobody was found yet"
    await world.until(lambda: world.link.up)
    assert world.link.count(counts)
    await world.until(lambda: world.actor.called("count") == [(counts,)])
    world.exists = False
    world.actor.dead.set()
    await world.until(lambda: not world.link.up)
    assert not world.link.count(counts)


async def test_a_replica_found_dead_leaves_the_membership_before_serve_says_so() -> None:
    membership = Membership()
    heard: list[frozenset[str]] = []
    membership.set(frozenset({"a", "b"}))
    membership.watch(heard.append)
    membership.remove("a")
    membership.remove("unknown")
    assert heard == [frozenset({"a", "b"}), frozenset({"b"})]
