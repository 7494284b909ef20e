"""What ``bench path`` and ``bench memory`` compare: our application, ``bare`` and ``floor``, on one Serve.

``bare`` has our hops and none of our code: HTTP → ingress → one awaited call to an actor → a replica
chosen by a trivial router. ``floor`` is HTTP → one replica. All three answer the same OpenAI objects.
"""

# No `from __future__ import annotations`: Serve ships ingress classes by value, and FastAPI could not
# resolve textual annotations in the replica.

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import ray
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from ray.serve.config import DeploymentActorConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from loadgen.bench.answers import events, streamed_answer, whole_answer
from loadgen.bench.instant_engine import InstantEngine
from prism_ray.application import assemble
from prism_ray.config import PrismConfig
from prism_ray.engine.base import Engine
from prism_ray.serving.replica import Replica

ARMS = ("prism", "bare", "floor")
CHAT = "/v1/chat/completions"
ONGOING = 100_000

PRISM_CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "scheduler": {"policy": "qas"},  # the policy of the kept figures
    "engine": {"simulated": {"cost": "zero"}},
    "replicas": {"num_cpus": 0.1},
    "ingress": {"num_cpus": 0.1},
}
"""One replica of an engine that takes no time."""


class BareChooser:
    """The actor that ``bare`` asks: it names the only lane there is."""

    async def choose(self, request_id: str) -> str:
        return request_id


class AnyReplicaRouter(RequestRouter):  # type: ignore[misc]
    """Any replica will do."""

    @property
    def supports_rejection_protocol(self) -> bool:
        return False

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        return [candidate_replicas]


class BareReplica:
    """Answers at once: a whole answer in one message, a stream in two."""

    async def whole(self, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
        return whole_answer(request_id)

    async def stream(
        self, request_id: str, body: dict[str, Any]
    ) -> AsyncIterator[list[dict[str, Any]]]:
        for payloads in streamed_answer(request_id):
            yield payloads


bare_api = FastAPI()
floor_api = FastAPI()


@serve.ingress(bare_api)
class BareIngress:
    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        self._replicas = replicas
        self._streams = replicas.options(stream=True)
        self._chooser: Any = None

    @bare_api.post(CHAT)
    async def chat(self, request: Request) -> Response:
        if self._chooser is None:
            self._chooser = serve.get_deployment_actor("chooser")
        body = json.loads(await request.body())
        request_id = uuid.uuid4().hex
        await self._chooser.choose.remote(request_id)
        if not body.get("stream"):
            return JSONResponse(await self._replicas.whole.remote(request_id, body))

        async def answer() -> AsyncIterator[bytes]:
            async for payloads in self._streams.stream.remote(request_id, body):
                yield events(payloads)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(answer(), media_type="text/event-stream")


@serve.ingress(floor_api)
class FloorIngress:
    @floor_api.post(CHAT)
    async def chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        request_id = uuid.uuid4().hex
        if not body.get("stream"):
            return JSONResponse(whole_answer(request_id))

        async def answer() -> AsyncIterator[bytes]:
            for payloads in streamed_answer(request_id):
                yield events(payloads)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(answer(), media_type="text/event-stream")


def bare_app() -> serve.Application:
    replicas = serve.deployment(
        BareReplica,
        name="Replica",
        max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=RequestRouterConfig(
            request_router_class="loadgen.bench.path_apps:AnyReplicaRouter"
        ),
    ).bind()
    chooser = DeploymentActorConfig(
        name="chooser",
        actor_class=ray.remote(BareChooser),
        init_kwargs={},
        actor_options={"num_cpus": 0, "max_concurrency": 1000},
    )
    return serve.deployment(
        BareIngress,
        name="Ingress",
        max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": 0.1},
        deployment_actors=[chooser],
    ).bind(replicas)


def floor_app() -> serve.Application:
    return serve.deployment(
        FloorIngress,
        name="Ingress",
        max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": 0.1},
    ).bind()


class InstantReplica(Replica):
    """Our replica around an engine that answers at once."""

    def _make_engine(self, config: PrismConfig) -> Engine:
        return InstantEngine()


def prism_app() -> serve.Application:
    return assemble(PrismConfig.load(PRISM_CONFIG), "bench", replica_class=InstantReplica)


APPS = {"prism": prism_app, "bare": bare_app, "floor": floor_app}
