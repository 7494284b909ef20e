"""The life of one request at the ingress: ticket, decision, body, answer; again if a replica fell away.

HTTP knows nothing of this, and this nothing of HTTP: it yields what the engine answered, or raises
ApiError. The ingress alone dispatches, and a request has one current attempt at a time.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from prism_ray.config import PrismConfig
from prism_ray.engine.base import Endpoint, EngineDied
from prism_ray.model import Decision, Ticket
from prism_ray.prompt import PreparedPrompt
from prism_ray.serving import errors
from prism_ray.serving.direct import FULL_PAUSE_S, DirectLine
from prism_ray.serving.membership import Membership
from prism_ray.serving.messages import (
    DIRECT_EPOCH,
    Accepted,
    Answer,
    Answered,
    Body,
    EngineSaysNo,
    NotTaken,
    Payloads,
    SubmitError,
    Undecided,
)
from prism_ray.serving.qas_link import QasLink, QasLost, QasUnavailable

logger = logging.getLogger(__name__)

HANDED_BACK_MAX = 32
"""New decisions after a replica handed the request back untouched, before the client gets a 503."""

HANDLES_MAX = 1024

GONE_CHECKS = 4
"""Half seconds that a request without an answer stays with a replica that Serve does not name here."""

AGAIN_AFTER_S = 0.5
"""Pause before a request is decided anew whose replica may be alive: the same one may be chosen again."""


class ReplicaLost(Exception):
    """The replica did not bring the call to its end. ``dead``: it will bring no other one there either.

    Where the connection broke, nobody knows: the call may be running there.
    """

    def __init__(self, why: str, *, dead: bool = False) -> None:
        super().__init__(why)
        self.dead = dead


@dataclass(slots=True)
class Inference:
    """One request: what was asked and, as it goes on, what became of it.

    ``max_new_tokens`` is the limit of each of its ``choices``.
    """

    endpoint: Endpoint
    body: dict[str, Any]
    prompt: PreparedPrompt
    max_new_tokens: int
    tenant: bytes
    arrived_s: float
    deadline_s: float | None = None
    choices: int = 1
    cache_salt: str = ""
    stream: bool = False
    wants_report: bool = False
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    decision: Decision | None = None
    sent_s: float = 0.0
    first_payload_s: float | None = None
    last_payload_s: float = 0.0
    answered: Answered | None = None
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    stalled: bool = False

    def ttft_terms(self) -> dict[str, float] | None:
        """TTFT as its three terms (paper, eq. 2), in seconds; they add up to ``total_s``.

        Durations of the replica's clock are laid into the span that this ingress measured: the way
        there counts as queue wait, the way back as first token. Of an answer that is not streamed the
        first token is never seen; the engine has sampled it when the prefill ends, so it counts from
        there.
        """
        if self.answered is None or self.first_payload_s is None:
            return None
        timings = self.answered.timings
        if timings.prefill_started_s is None or timings.prefill_ended_s is None:
            return None
        wait = self.sent_s - self.arrived_s + timings.prefill_started_s
        prefill = timings.prefill_ended_s - timings.prefill_started_s
        streamed = bool(self.body.get("stream"))
        total = self.first_payload_s - self.arrived_s if streamed else wait + prefill
        return {
            "queue_wait_s": wait,
            "prefill_s": prefill,
            "first_token_s": total - wait - prefill,
            "total_s": total,
        }

    def _non_global(self) -> dict[str, Any] | None:
        """Hits beyond the system prefix and the tool schemas; None where nothing is beyond."""
        skeleton = self.prompt.skeleton
        shared = skeleton.global_tokens
        beyond = skeleton.prompt_tokens - shared
        if self.answered is None or beyond <= 0:
            return None
        cached = max(0, self.answered.cached_tokens - shared)
        return {
            "prompt_tokens": beyond,
            "cached_tokens": cached,
            "hit_rate": round(cached / beyond, 4),
        }

    def inter_token_s(self) -> float | None:
        """Mean seconds from a token to the next one of the same choice; None where that is not seen."""
        if not self.stream or self.answered is None or self.first_payload_s is None:
            return None
        steps = self.answered.output_tokens / self.choices - 1
        return (self.last_payload_s - self.first_payload_s) / steps if steps >= 1 else None

    def report(self) -> dict[str, Any]:
        """The ``prism`` object of a response."""
        decision = self.decision
        assert decision is not None
        labels = self.prompt.labels
        return {
            "order": [labels[index] for index in decision.order],
            "lane": str(decision.lane),
            "replica": decision.replica,
            "reason": decision.reason,
            "cached_tokens_predicted": decision.predicted_cached_tokens,
            "cached_tokens": self.answered.cached_tokens if self.answered else None,
            "non_global": self._non_global(),
            "queue_ms": round(decision.queue_s * 1000, 3),
            "attempts": decision.attempt + 1,
            "ttft": self.ttft_terms(),
        }


class Dispatching:
    """Takes requests from the door to a replica; shared by all requests of an ingress replica.

    ``on_direct`` is told of every decision that was taken here, without QAS.
    """

    def __init__(
        self,
        config: PrismConfig,
        replicas: DeploymentHandle[Any],
        membership: Membership,
        qas: QasLink,
        incarnation: str,
        on_direct: Callable[[Decision], None],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._membership = membership
        self._qas = qas
        self._incarnation = incarnation
        self._on_direct = on_direct
        self._direct = DirectLine(membership, turn=random.randrange(1 << 16))
        self._direct_load: Counter[str] = Counter()
        self._handles: dict[str, DeploymentHandle[Any]] = {}

    def retune(self, config: PrismConfig) -> None:
        """Requests that come from now on are bound by these limits."""
        self._config = config

    def tables(self) -> dict[str, int]:
        """Sizes of what is kept beside requests; bounded by replicas, and by ``HANDLES_MAX``."""
        return {"handles": len(self._handles), "loaded_replicas": len(self._direct_load)}

    async def answer(self, request: Inference) -> AsyncGenerator[tuple[dict[str, Any], ...]]:
        """Payloads in the order of the engine; the first comes only after the decision is final.

        Those of an answer that is not streamed come when all of it is there: until then its client has
        got nothing, so a replica that dies, however late, costs it a retry only.

        Raises ApiError; on cancellation QAS forgets the request and the replica aborts it.
        """
        attempt = lost = handed_back = 0
        while True:
            decision = await self._decide(request, attempt)
            attempt = decision.attempt
            request.decision = decision
            messages = self._send(request, decision)
            try:
                first = await self._first(messages, decision)
                if isinstance(first, NotTaken):
                    handed_back += decision.epoch != DIRECT_EPOCH
                    if handed_back > HANDED_BACK_MAX:
                        raise errors.no_replica(1.0)
                    attempt += 1
                    continue
                if isinstance(first, EngineSaysNo):
                    raise errors.ApiError(first.status, "refused", body=first.body)
                request.accepted.set()
                parts = self._payloads(request, first, messages)
                if request.stream:
                    async for payloads in parts:
                        yield payloads
                else:
                    for payloads in [payloads async for payloads in parts]:
                        yield payloads
                return
            except ReplicaLost as error:
                if error.dead:
                    self._qas.report_gone(decision.replica)
                else:
                    self._qas.report_doubt(decision.replica)
                if request.stream and request.first_payload_s is not None:
                    fate = "died" if error.dead else "was lost"
                    raise errors.internal(f"replica {decision.replica} {fate}: {error}") from None
                request.first_payload_s = None
                lost += 1
                if lost > self._config.limits.retries:
                    raise errors.no_replica(1.0) from None
                if not error.dead:  # alive, it may wait for this body, or keep a slot for it
                    self._qas.cancel(request.request_id, attempt)
                    await asyncio.sleep(AGAIN_AFTER_S)
                attempt += 1
            except BaseException:
                # The client left, or something failed on the way: no slot may wait for this body.
                self._qas.cancel(request.request_id, attempt)
                raise
            finally:
                await messages.aclose()

    # -- decision -------------------------------------------------------------------------------

    async def _decide(self, request: Inference, attempt: int) -> Decision:
        while True:
            now = time.monotonic()
            ticket = Ticket(
                request_id=request.request_id,
                skeleton=request.prompt.skeleton,
                arrival_s=0.0,
                max_new_tokens=request.choices * request.max_new_tokens,
                attempt=attempt,
                ingress=self._incarnation,
                tenant=request.tenant,
            )
            left = None if request.deadline_s is None else request.deadline_s - now
            if left is not None and left <= 0:
                raise errors.deadline_passed()
            try:
                answer = await self._qas.submit(ticket, now - request.arrived_s, left, attempt > 0)
            except QasLost:
                attempt += 1
                await asyncio.sleep(0.05)
                continue
            except QasUnavailable:
                attempt += 1  # QAS was told to forget the last one, whenever it hears of it
                directly = await self._decide_directly(request, attempt)
                if directly is None:
                    continue
                return directly
            except asyncio.CancelledError:
                self._qas.cancel(request.request_id, attempt)
                raise
            if isinstance(answer, Undecided):
                raise _refusal(answer)
            # One that nobody here has heard of yet is sent its body all the same: others told QAS of it,
            # and Serve's router waits for the news. To call it gone would take it from all of them.
            if not (self._membership.left(answer.replica) and self._membership.replicas):
                return answer
            self._qas.report_gone(answer.replica)
            attempt += 1

    async def _decide_directly(self, request: Inference, attempt: int) -> Decision | None:
        """No QAS answers: traffic goes on. None: it answers again. Holds a slot of the direct line."""
        await self._direct.enter()
        decision = None
        try:
            if self._qas.down:
                order = request.prompt.skeleton.native_order
                decision = self._direct.decide(
                    request.request_id, attempt, order, request.arrived_s, self._direct_load
                )
                if decision is None:
                    raise errors.no_replica(1.0)
                self._on_direct(decision)
            return decision
        finally:
            if decision is None:
                self._direct.leave()

    # -- replica --------------------------------------------------------------------------------

    async def _send(self, request: Inference, decision: Decision) -> AsyncGenerator[Answer, None]:
        """Send the body to the decided replica; its messages. Raises ReplicaLost."""
        skeleton = request.prompt.skeleton
        assembled = request.prompt.assemble(decision.order)
        call = Body(
            request_id=request.request_id,
            attempt=decision.attempt,
            epoch=decision.epoch,
            plan_version=decision.plan_version,
            endpoint=request.endpoint,
            body=_with_output_limit(request, assembled.body),
            prompt_ids=assembled.prompt_ids,
            boundaries=assembled.boundaries,
            segments=assembled.segments,
            path_keys=assembled.path_keys,
            system_tokens=skeleton.system.tokens if skeleton.system else 0,
            uncached_tokens=skeleton.prompt_tokens - decision.predicted_cached_tokens,
            cache_salt=request.cache_salt,
        )
        request.sent_s = time.monotonic()
        self._direct_load[decision.replica] += 1
        response = self._handle(decision.replica).generate.remote(call)
        try:
            async for message in response:
                yield message
        except RayTaskError as error:
            if isinstance(error.cause, EngineDied):
                raise ReplicaLost("its engine died", dead=True) from None
            raise errors.internal(f"the replica failed: {error.cause!r}") from None
        except (RayActorError, RayServeException) as error:
            # ActorUnavailableError is a RayActorError, and says of an actor only that it is out of reach.
            dead = isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
            raise ReplicaLost(type(error).__name__, dead=dead) from None
        except RayError as error:
            raise errors.internal(f"the replica failed: {error!r}") from None
        finally:
            self._direct_load[decision.replica] -= 1
            if not self._direct_load[decision.replica]:
                del self._direct_load[decision.replica]
            response.cancel()

    def _handle(self, replica: str) -> DeploymentHandle[Any]:
        """The handle whose calls go to one replica; making one costs, so those in use are kept."""
        handle = self._handles.get(replica)
        if handle is None:
            if len(self._handles) >= HANDLES_MAX:
                self._handles.clear()
            handle = self._handles[replica] = self._replicas.options(
                stream=True,
                session_id=replica,
                request_serialization="pickle",
                response_serialization="pickle",
            )
        return handle

    async def _first(self, messages: AsyncIterator[Answer], decision: Decision) -> Answer:
        """The first message; a request that was decided directly leaves its slot with it."""
        try:
            first = await self._first_message(messages, decision)
            if decision.epoch == DIRECT_EPOCH and isinstance(first, NotTaken):
                await asyncio.sleep(FULL_PAUSE_S)
            return first
        finally:
            if decision.epoch == DIRECT_EPOCH:
                self._direct.leave()

    async def _first_message(self, messages: AsyncIterator[Answer], decision: Decision) -> Answer:
        """Raises ReplicaLost when Serve's router, which has no such replica, did not give it the call.

        A replica that only drains answers what it has already; a dead one fails the call by itself.
        """
        first = asyncio.ensure_future(anext(messages, None))
        gone_checks = 0
        try:
            while True:
                done, _ = await asyncio.wait((first,), timeout=0.5)
                if done:
                    message = first.result()
                    if message is None:
                        raise ReplicaLost("it answered nothing")
                    return message
                members = self._membership.replicas
                gone_checks += bool(members and decision.replica not in members)
                if gone_checks > GONE_CHECKS:
                    left = self._membership.left(decision.replica)
                    why = "Serve took it away" if left else "it is not known here"
                    raise ReplicaLost(why, dead=left)
        finally:
            if not first.done():
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    async def _payloads(
        self, request: Inference, first: Answer, messages: AsyncIterator[Answer]
    ) -> AsyncIterator[tuple[dict[str, Any], ...]]:
        try:
            async for message in _chain(first, messages):
                if isinstance(message, Payloads):
                    request.last_payload_s = time.monotonic()
                    if request.first_payload_s is None:
                        request.first_payload_s = request.last_payload_s
                    if message.answered is not None:
                        request.answered = message.answered
                    yield message.items
                elif isinstance(message, Answered):
                    request.answered = message
                elif isinstance(message, EngineSaysNo):  # noticed only in the engine's scheduler
                    raise errors.ApiError(message.status, "refused", body=message.body)
                elif not isinstance(message, Accepted):
                    raise errors.internal(f"unexpected {type(message).__name__} from the replica")
        except ReplicaLost:
            if request.answered is None:
                raise
            # All of the answer is there; what the replica did after it is no matter of this request.
        if request.answered is None:
            raise ReplicaLost("its answer broke off")


async def _chain(first: Answer, rest: AsyncIterator[Answer]) -> AsyncIterator[Answer]:
    yield first
    async for message in rest:
        yield message


def _with_output_limit(request: Inference, body: dict[str, Any]) -> dict[str, Any]:
    """The body with the output length that was booked for it, so that engine and books agree."""
    name = "max_completion_tokens" if request.endpoint == "chat" else "max_tokens"
    if body.get("max_tokens") is not None and body.get(name) is None:
        name = "max_tokens"
    return body | {name: request.max_new_tokens}


def _refusal(answer: Undecided) -> errors.ApiError:
    if answer.error is SubmitError.QUEUE_FULL:
        return errors.queue_full(answer.retry_after_s)
    if answer.error is SubmitError.NO_REPLICA:
        return errors.no_replica(answer.retry_after_s)
    if answer.error is SubmitError.DEADLINE:
        return errors.deadline_passed()
    return errors.internal(f"the request was dropped: {answer.error}")
