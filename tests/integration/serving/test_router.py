"""The request router over Serve's own classes: the decided replica or none, and never a busy loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest

from prism_ray.serving.membership import membership_of
from prism_ray.serving.router import DecidedReplicaRouter


def replica(name: str) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name))


def pending(session_id: str) -> PendingRequest:
    metadata = RequestMetadata("r", "i", session_id=session_id)
    return PendingRequest(args=[], kwargs={}, metadata=metadata)


async def choose(request: PendingRequest, *names: str) -> list[list[str]]:
    router = DecidedReplicaRouter.__new__(DecidedReplicaRouter)
    router._deployment_id = DeploymentID("Replica", "router-test")
    ranks = await router.choose_replicas([replica(n) for n in names], request)
    return [[r.replica_id.unique_id for r in rank] for rank in ranks]


class TestDecidedReplicaRouter:
    async def test_the_decided_replica_is_chosen_and_no_other(self) -> None:
        assert await choose(pending("b"), "a", "b", "c") == [["b"]]

    async def test_a_replica_that_is_gone_is_waited_for_without_a_busy_loop(self) -> None:
        request = pending("gone")
        assert await choose(request, "a", "b") == [[]]
        assert request.routing_context.should_backoff

    async def test_calls_that_are_held_back_are_counted(self) -> None:
        membership = membership_of("router-test", "Replica")
        membership.take_waits()
        await choose(pending("a"), "a")
        assert membership.take_waits() == 0
        for _ in range(2):
            await choose(pending("gone"), "a")
        assert [membership.take_waits(), membership.take_waits()] == [2, 0]

    @pytest.mark.parametrize("names", [("a",), ("a", "b")])
    async def test_an_undecided_call_goes_anywhere(self, names: tuple[str, ...]) -> None:
        assert await choose(pending(""), *names) == [list(names)]
