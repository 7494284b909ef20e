"""A request's way through the ingress over a fake QAS and fake replicas: decisions, losses, retries."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from prism_ray.config import PrismConfig
from prism_ray.model import Decision, Lane, Skeleton, Ticket
from prism_ray.serving.direct import DirectLine
from prism_ray.serving.errors import ApiError
from prism_ray.serving.inference import Dispatching, Inference
from prism_ray.serving.membership import Membership
from prism_ray.serving.messages import Answer, Answered, Body, NotTaken, Payloads
from prism_ray.serving.qas_link import QasUnavailable

from .fake_ray import unreachable

pytestmark = pytest.mark.virtual_time


class Qas:
    """Decides for the replicas in ``decided``, one after the other; none: it does not answer."""

    def __init__(self) -> None:
        self.decided: list[str] = []
        self.gone: list[str] = []
        self.doubted: list[str] = []
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

    def report_doubt(self, replica: str) -> None:
        self.doubted.append(replica)

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
            if message is SILENCE:
                await asyncio.Event().wait()
            if isinstance(message, Exception):
                raise message
            yield message

    def cancel(self) -> None: ...


SILENCE = TimeoutError()
"""Nothing more ever comes."""

WHOLE: list[Answer | Exception] = [Payloads(({"text": "a"},)), Answered(1, 0, 1)]


class World:
    """An ingress that knows the replicas ``a`` and ``b``."""

    def __init__(self) -> None:
        self.qas = Qas()
        self.replicas = Replicas()
        self.membership = Membership()
        self.membership.set(frozenset({"a", "b"}))
        self.direct: list[Decision] = []
        self.config = PrismConfig.load({"extends": "simulated"})
        self.dispatching = Dispatching(
            self.config,
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
        async with asyncio.timeout(10.0):
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


class TestALostReplica:
    """Whether it is dead is for QAS to know; whether the request can be retried, for its client."""

    async def test_one_that_is_out_of_reach_is_not_reported_dead_and_may_be_tried_again(
        self, world: World
    ) -> None:
        world.qas.decided = ["a", "a"]
        world.replicas.answers = [[unreachable()], WHOLE]
        assert await world.answer() == [{"text": "a"}]
        assert not world.qas.gone, "it may be alive"
        assert world.qas.doubted == ["a"], "QAS knows when it heard it last"
        assert [call.attempt for _, call in world.replicas.calls] == [0, 1]
        assert [attempt for _, attempt in world.qas.cancelled] == [0], "no slot waits for the first"

    async def test_one_that_died_is_reported_and_the_request_goes_elsewhere(
        self, world: World
    ) -> None:
        world.qas.decided = ["a", "b"]
        world.replicas.answers = [[ActorDiedError()], WHOLE]
        assert await world.answer() == [{"text": "a"}]
        assert world.qas.gone == ["a"]
        assert not world.qas.doubted
        assert world.replicas.called == ["a", "b"]

    async def test_one_that_stays_out_of_reach_costs_no_more_than_the_retries(
        self, world: World
    ) -> None:
        world.qas.decided = ["a"] * 5
        world.replicas.answers = [[unreachable()] for _ in range(5)]
        with pytest.raises(ApiError) as refusal:
            await world.answer()
        assert refusal.value.status == 503
        assert len(world.replicas.calls) == 1 + world.config.limits.retries

    @pytest.mark.parametrize(
        ("error", "gone", "fate"),
        [(unreachable(), [], "was lost"), (ActorDiedError(), ["a"], "died")],
    )
    async def test_a_stream_that_has_begun_ends_with_an_error_and_never_begins_again(
        self, world: World, error: Exception, gone: list[str], fate: str
    ) -> None:
        world.qas.decided = ["a", "b"]
        world.replicas.answers = [[*WHOLE[:1], error], WHOLE]
        with pytest.raises(ApiError, match=fate) as failure:
            await world.answer(stream=True)
        assert failure.value.status == 500
        assert world.qas.gone == gone
        assert len(world.replicas.calls) == 1

    async def test_a_whole_answer_that_has_begun_is_made_again(self, world: World) -> None:
        world.qas.decided = ["a", "b"]
        world.replicas.answers = [[*WHOLE[:1], unreachable()], WHOLE]
        assert await world.answer() == [{"text": "a"}]
        assert len(world.replicas.calls) == 2

    @pytest.mark.parametrize("stream", [True, False])
    async def test_an_answer_whose_end_is_told_is_whole_whatever_its_replica_does_then(
        self, world: World, stream: bool
    ) -> None:
        world.qas.decided = ["a", "b"]
        world.replicas.answers = [[*WHOLE, ActorDiedError()], WHOLE]
        assert await world.answer(stream=stream) == [{"text": "a"}]
        assert len(world.replicas.calls) == 1, "nothing is served twice"


class TestAReplicaThatTheIngressDoesNotKnow:
    async def test_one_that_only_others_were_told_of_is_sent_its_body_and_not_called_gone(
        self, world: World
    ) -> None:
        world.qas.decided, world.replicas.answers = ["new"], [WHOLE]
        assert await world.answer() == [{"text": "a"}]
        assert world.replicas.called == ["new"]
        assert not world.qas.gone

    async def test_one_that_never_becomes_known_is_given_up_and_not_called_gone(
        self, world: World
    ) -> None:
        world.qas.decided, world.replicas.answers = ["new", "a"], [[SILENCE], WHOLE]
        assert await world.answer() == [{"text": "a"}]
        assert world.replicas.called == ["new", "a"]
        assert not world.qas.gone

    async def test_one_that_left_is_called_gone_and_sent_nothing(self, world: World) -> None:
        world.membership.set(frozenset({"b"}))
        world.qas.decided, world.replicas.answers = ["a", "b"], [WHOLE]
        await world.answer()
        assert world.replicas.called == ["b"]
        assert world.qas.gone == ["a"]

    async def test_one_that_leaves_before_it_has_the_body_is_called_gone(
        self, world: World
    ) -> None:
        world.qas.decided, world.replicas.answers = ["a", "b"], [[SILENCE], WHOLE]
        answer = asyncio.ensure_future(world.answer())
        await asyncio.sleep(0.05)
        world.membership.set(frozenset({"b"}))
        assert await answer == [{"text": "a"}]
        assert world.qas.gone == ["a"]

    def test_a_replica_that_serve_names_again_has_not_left(self) -> None:
        membership = Membership()
        membership.set(frozenset({"a"}))
        membership.remove("a")
        assert membership.left("a")
        membership.set(frozenset({"a"}))
        assert not membership.left("a")
        assert not membership.left("b")
