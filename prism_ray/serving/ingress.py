"""The ingress: the OpenAI surface over HTTP. Reads requests, waits for the engine, frames the answer.

What is refused at the door is in ``preparation``; scheduling, dispatch and retries are in
``inference``; what an engine makes of a body is its own matter.
"""

# No `from __future__ import annotations`: Serve ships this class by value, and FastAPI could not
# resolve textual annotations in the replica.

import asyncio
import contextvars
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect

from prism_ray import __version__
from prism_ray.config import PrismConfig
from prism_ray.engine.base import Endpoint
from prism_ray.model import Decision
from prism_ray.serving import errors
from prism_ray.serving.auth import Door
from prism_ray.serving.errors import ApiError
from prism_ray.serving.framing import (
    EventStream,
    FirstPayloads,
    Payload,
    answer_headers,
    drop,
    server_sent_events,
)
from prism_ray.serving.held_bytes import HeldBytes
from prism_ray.serving.http_errors import handle_errors
from prism_ray.serving.inference import Dispatching, Inference
from prism_ray.serving.ingress_meters import IngressMeters
from prism_ray.serving.listener import bound_to_loopback
from prism_ray.serving.membership import membership_of
from prism_ray.serving.openapi import published_schema
from prism_ray.serving.preparation import Preparation
from prism_ray.serving.qas_link import QasLink, QasUnavailable
from prism_ray.serving.tenants import byte_weights
from prism_ray.serving.tuning import retuned
from prism_ray.telemetry import live_page

logger = logging.getLogger(__name__)

REPLICA_DEPLOYMENT = "Replica"

LONG_BODY_BYTES = 32 << 10
"""Larger bodies are split in a thread: tokenizing them takes more than a few milliseconds."""

LATE_REFUSAL_S = 0.1
"""A stream opens this long after the engine took the request: an engine refuses some bodies only when
its scheduler sees them, and that should still be a status."""

FLUSH_TIMEOUT_S = 10.0

api = FastAPI(
    title="prism_ray", version=__version__, docs_url=None, redoc_url=None, openapi_url=None
)
handle_errors(api)


async def _first_of(
    payloads: AsyncGenerator[tuple[Payload, ...], None],
) -> tuple[Payload, ...]:
    try:
        return await anext(payloads)
    except StopAsyncIteration:
        raise errors.internal("the engine answered nothing") from None


async def _taken(inference: Inference) -> None:
    await inference.accepted.wait()
    await asyncio.sleep(LATE_REFUSAL_S)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _not_flushed(flushed: dict[str, bool]) -> Response:
    names = ", ".join(name for name, done in flushed.items() if not done)
    body = errors.error_body(f"not flushed, still working: {names}", "conflict", code="busy")
    return JSONResponse(body, 409)


@serve.ingress(api)
class Ingress:
    """One of the HTTP replicas. Holds bodies while their tickets wait in QAS."""

    async def __init__(  # type: ignore[misc]
        self, config_json: str, secret: bytes, replicas: DeploymentHandle[Any]
    ) -> None:
        self._config = self._deployed = config = PrismConfig.from_json(config_json)
        self._created_unix_s = int(time.time())
        self._replicas = replicas
        # Loading a tokenizer takes seconds: off the event loop, before the first request.
        self._preparation = await asyncio.to_thread(Preparation, config, secret, self._bounds)
        self._door = Door.of(config.auth, open_admin=await bound_to_loopback())
        self._held = HeldBytes(config.limits.queue_bytes, byte_weights(config))
        app = serve.get_replica_context().app_name
        self._membership = membership = membership_of(app, REPLICA_DEPLOYMENT)
        incarnation = uuid.uuid4().hex
        self._qas = QasLink(replicas, membership, config.limits.qas_timeout_s, ingress=incarnation)
        self._qas.start()
        self._meters = IngressMeters(self._qas.count, membership.take_waits)
        self._meters.start()
        self._dispatching = Dispatching(
            config, replicas, membership, self._qas, incarnation, self._meters.decided
        )

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve's hot reload: what ``tuning`` allows, here and in QAS. Raises ConfigError."""
        self._config = config = retuned(self._deployed, user_config)
        self._preparation.retune(config.limits)
        self._held.retune(config.limits.queue_bytes)
        self._dispatching.retune(config)
        self._qas.tune(user_config)

    # -- state ----------------------------------------------------------------------------------

    @api.get("/health")
    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/ready")
    async def ready(self) -> Response:
        status = self._qas.status
        if status is None or not status.replicas:
            error = errors.no_replica(1.0)
            return JSONResponse(error.body, error.status, headers=error.headers)
        return JSONResponse({"status": "ready", "replicas": len(status.replicas)})

    @api.get("/openapi.json")
    async def schema(self) -> dict[str, Any]:
        return published_schema()

    @api.get("/metrics")
    async def metrics(self) -> Response:
        """The application's series as Prometheus text; 503 while no QAS answers."""
        counts = self._meters.take()
        try:
            text = await self._qas.metrics(counts)
        except QasUnavailable:
            self._meters.keep(counts)
            raise errors.no_replica(1.0) from None
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.get("/v1/models")
    async def models(self, request: Request) -> dict[str, Any]:
        self._door.tenant(request.headers)
        model = {
            "id": self._config.model.name,
            "object": "model",
            "created": self._created_unix_s,
            "owned_by": "prism_ray",
            "max_model_len": min((bound for bound in self._bounds() if bound), default=None),
        }
        return {"object": "list", "data": [model]}

    async def tables(self) -> dict[str, int]:
        """Sizes of what is kept beside requests, by handle (benchmarks, tests); all are bounded."""
        held = {"held_bytes": self._held.bytes, "holding_tenants": len(self._held.of_tenants())}
        return held | self._preparation.tables() | self._dispatching.tables()

    # -- operators ------------------------------------------------------------------------------

    @api.get("/prism/", response_class=HTMLResponse)
    async def page(self, request: Request, top: int = 20, refresh: int = 2) -> Response:
        """The live page: what ``/prism/state`` says, for people with a browser."""
        self._door.admin(request.headers, browser=True)
        refresh_s = max(0, min(refresh, 3600))
        try:
            state = await self._qas.state(max(1, min(top, 200)))
        except QasUnavailable:
            return HTMLResponse(live_page.unavailable(refresh_s), 503, headers=live_page.HEADERS)
        html = await asyncio.to_thread(live_page.page, state, refresh_s)
        return HTMLResponse(html, headers=live_page.HEADERS)

    @api.get("/prism/state")
    async def state(self, request: Request, top: int = 20) -> Response:
        self._door.admin(request.headers, browser=True)
        try:
            return JSONResponse(await self._qas.state(max(1, min(top, 1000))))
        except QasUnavailable:
            raise errors.no_replica(1.0) from None

    @api.get("/prism/explain/{answer_id}")
    async def explain(self, request: Request, answer_id: str) -> Response:
        """Why the request with this answer id (or request id) went where it went."""
        self._door.admin(request.headers, browser=True)
        request_id = answer_id.rpartition("-")[2]
        try:
            found = await self._qas.explain(request_id)
        except QasUnavailable:
            raise errors.no_replica(1.0) from None
        if found is None:
            raise errors.unknown_request(answer_id)
        return JSONResponse(found)

    @api.post("/flush_cache")
    async def flush_cache(self, request: Request) -> Response:
        """Empty every replica's prefix cache. An engine that is working keeps it: 409 then."""
        self._door.admin(request.headers)
        names = sorted(self._membership.replicas)
        if not names:
            raise errors.no_replica(1.0)
        calls = [self._flush(name) for name in names]
        flushed = dict(zip(names, await asyncio.gather(*calls), strict=True))
        done = all(flushed.values())
        return JSONResponse({"flushed": flushed}, 200) if done else _not_flushed(flushed)

    async def _flush(self, replica: str) -> bool:
        async def call() -> bool:
            handle = self._replicas.options(session_id=replica)
            return bool(await handle.flush_cache.remote())

        # In a context of its own: Serve's router tells pending calls apart by the HTTP request that they
        # belong to, and of two at once from one request only one would ever be routed.
        task = asyncio.create_task(call(), context=contextvars.Context())
        try:
            done = await asyncio.wait_for(task, FLUSH_TIMEOUT_S)
        except (
            Exception
        ) as error:  # whatever Serve or the engine says: the answer names the replica
            logger.warning("replica %s was not flushed: %r", replica, error)
            return False
        if done:
            self._qas.flushed(replica)
        return done

    # -- inference ------------------------------------------------------------------------------

    @api.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Response:
        return await self._serve(request, "chat")

    @api.post("/v1/completions")
    async def completions(self, request: Request) -> Response:
        return await self._serve(request, "completions")

    async def _serve(self, request: Request, endpoint: Endpoint) -> Response:
        try:
            inference, give_back = await self._read_inference(request, endpoint)
        except ApiError as error:
            self._meters.refused(error.status)
            raise
        payloads = self._meters.watched(inference, self._dispatching.answer(inference))
        first: FirstPayloads = asyncio.ensure_future(_first_of(payloads))
        first.add_done_callback(lambda _: give_back())
        streams = False
        try:
            await self._opening(request, inference, first)
            if inference.stream:
                streams = True
                return self._stream(inference, first, payloads)
            (whole,) = first.result()
            async for _ in payloads:  # a whole response is one payload; the end has to be read
                pass
        finally:
            if not streams:
                await drop(first, payloads)
        if inference.wants_report:
            whole |= {"prism": inference.report()}
        return JSONResponse(whole, headers=answer_headers(inference.decision))

    async def _read_inference(
        self, request: Request, endpoint: Endpoint
    ) -> tuple[Inference, Callable[[], None]]:
        """The request, and what gives back the bytes that are held for it. Raises ApiError."""
        arrived_s = time.monotonic()
        tenant = self._door.tenant(request.headers)
        raw = await self._read(request)
        self._held.take(len(raw), tenant)
        give_back = partial(self._held.give_back, len(raw), tenant)
        arguments = endpoint, raw, request.headers, tenant, arrived_s
        try:
            if len(raw) > LONG_BODY_BYTES:
                return await asyncio.to_thread(self._preparation.inference, *arguments), give_back
            return self._preparation.inference(*arguments), give_back
        except BaseException:
            give_back()
            raise

    async def _opening(self, request: Request, inference: Inference, first: FirstPayloads) -> None:
        """Wait until the answer can begin. Raises ApiError, and ClientDisconnect if nobody waits."""
        gone = asyncio.ensure_future(_disconnected(request))
        waited: list[asyncio.Future[Any]] = [first, gone]
        if inference.stream:
            waited.append(asyncio.ensure_future(_taken(inference)))
        timeout_s = self._config.limits.keepalive_after_s if inference.stream else None
        try:
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for other in waited[1:]:
                other.cancel()
        if first.done():
            first.result()
        elif gone.done() and not gone.cancelled():
            raise ClientDisconnect

    def _stream(
        self,
        inference: Inference,
        first: FirstPayloads,
        payloads: AsyncGenerator[tuple[Payload, ...], None],
    ) -> Response:
        limits = self._config.limits
        known = first.done() or inference.accepted.is_set()
        told: Decision | None = inference.decision if known else None
        events = server_sent_events(
            inference, first, payloads, told=told, keepalive_s=limits.keepalive_after_s
        )
        return EventStream(
            events,
            limits.client_stall_s,
            headers=answer_headers(told),
            inference=inference,
            end=partial(drop, first, payloads),
        )

    def _bounds(self) -> tuple[int, int]:
        """Context and pool of the smallest replica, in tokens; 0 while none is known."""
        status = self._qas.status
        if status is None or not status.replicas:
            return 0, 0
        return status.context_length, status.pool_tokens

    async def _read(self, request: Request) -> bytes:
        limit = self._config.limits.body_bytes
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            raise errors.too_large(limit)
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise errors.too_large(limit)
            parts.append(part)
        return b"".join(parts)
