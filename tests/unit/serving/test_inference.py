"""A request's way through the ingress over a fake QAS and fake replicas: decisions, losses, retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from prism_ray.config import PrismConfig
from prism_ray.model import Decision, Lane, Skeleton, Ticket
from prism_ray.serving.direct import DirectLine
from prism_ray.serving.inference import Dispatching, Inference
from prism_ray.serving.membership import Membership
from prism_ray.serving.messages import Answer, Answered, Body, NotTaken, Payloads
from prism_ray.serving.qas_link import QasUnavailable


class Qas:
    """Decides for the replicas in ``decided``, one after the other; none: it does not answer."""

    def __init__(self) -> None:
        self.decided: list[str] = []
        self.gone: list[str] = []
        self.cancelled: list[tuple[str, int]] = []

    @property
    def down(self) -> bool:
        return not self.decided

    async def submit(self, ticket: Ticket, waited_s: float, _: float | None, __: bool) -> Decision:
        if self.down:
            raise QasUnavailable
        replica = self.decided.pop(0)
        return Decision(
            ticket.request_id, ticket.attempt, "e", replica, 1, 0, (), Lane.HOT, waited_s, 0
        )

    def report_gone(self, replica: str) -> None:
        self.gone.append(replica)

    def cancel(self, request_id: str, attempt: int) -> None:
        self.cancelled.append((request_id, attempt))


class Replicas:
    """A Serve handle: the n-th call is answered with ``answers[n]``; what is an exception is raised."""

    def __init__(self, target: str = "", of: Replicas | None = None) -> None:
        self.target = target
        self.calls: list[tuple[str, Body]] = [] if of is None else of.calls
        self.answers: list[list[Answer | Exception]] = [] if of is None else of.answers

    def options(self, session_id: str, **_: Any) -> Replicas:
        return Replicas(session_id, self)

    @property
    def generate(self) -> Replicas:
        return self

    def remote(self, call: Body) -> Response:
        self.calls.append((self.target, call))
        return Response(self.answers.pop(0))

    @property
    def called(self) -> list[str]:
        return [target for target, _ in self.calls]


class Response:
    def __init__(self, messages: list[Answer | Exception]) -> None:
        self._messages = messages

    async def __aiter__(self) -> AsyncIterator[Answer]:
        for message in self._messages:
            if isinstance(message, Exception):
                raise message
            yield message

    def cancel(self) -> None: ...


WHOLE: list[Answer | Exception] = [Payloads(({"text": "a"},)), Answered(1, 0, 1)]


class World:
    """An ingress that knows the replicas ``a`` and ``b``."""

    def __init__(self) -> None:
        self.qas = Qas()
        self.replicas = Replicas()
        self.membership = Membership()
        self.membership.set(frozenset({"a", "b"}))
        self.direct: list[Decision] = []
        self.dispatching = Dispatching(
            PrismConfig.load({"extends": "simulated"}),
            self.replicas,  # type: ignore[arg-type]
            self.membership,
            self.qas,  # type: ignore[arg-type]
            "me",
            self.direct.append,
        )

    async def answer(self, *, stream: bool = False) -> list[dict[str, Any]]:
        """The payloads that a client gets."""
        assembled = SimpleNamespace(
            body={}, prompt_ids=[1], boundaries=(), segments=(), path_keys=()
        )
        prompt: Any = SimpleNamespace(
            skeleton=Skeleton(None, (), (), 1), labels=(), assemble=lambda order: assembled
        )
        request = Inference("chat", {}, prompt, 1, b"", 0.0, stream=stream)
        return [p async for items in self.dispatching.answer(request) for p in items]


@pytest.fixture
def world() -> World:
    return World()


class TestWithoutQas:
    async def test_each_decision_of_the_ingress_is_told(self, world: World) -> None:
        world.replicas.answers = [[NotTaken("over_credit")], WHOLE]
        assert await world.answer() == [{"text": "a"}]
        assert [d.reason for d in world.direct] == ["qas_unavailable"] * 2, "the refused one, too"
        assert [d.replica for d in world.direct] == world.replicas.called

    async def test_a_decision_of_qas_is_not_the_ingresss_own(self, world: World) -> None:
        world.qas.decided, world.replicas.answers = ["a"], [WHOLE]
        await world.answer()
        assert not world.direct

    async def test_replicas_of_equal_load_take_turns(self, world: World) -> None:
        world.replicas.answers = [WHOLE] * 6
        for _ in range(6):
            await world.answer()
        assert Counter(world.replicas.called) == {"a": 3, "b": 3}

    def test_the_replica_with_fewer_requests_comes_first_whosever_turn_it_is(self) -> None:
        membership = Membership()
        membership.set(frozenset({"a", "b", "c"}))
        line = DirectLine(membership)
        load = Counter({"a": 2, "b": 1, "c": 2})
        decided = [line.decide("r", 0, (), 0.0, load) for _ in range(3)]
        assert {d.replica for d in decided if d} == {"b"}

    def test_ingresses_begin_at_different_replicas(self) -> None:
        membership = Membership()
        membership.set(frozenset({"a", "b", "c"}))
        lines = [DirectLine(membership, turn) for turn in range(3)]
        first = [line.decide("r", 0, (), 0.0, Counter()) for line in lines]
        assert {d.replica for d in first if d} == {"a", "b", "c"}
