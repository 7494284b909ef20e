"""An ingress's line to the QAS actor: tickets out, decisions in, heartbeats, membership.

It finds the actor again after the controller re-created it, hands every replica the actor's address,
and says when the actor cannot be used, so that the ingress can dispatch by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from prism_ray.model import Decision, Ticket
from prism_ray.serving.line import AnyLine, open_line
from prism_ray.serving.loops import keep_running
from prism_ray.serving.membership import Membership
from prism_ray.serving.messages import QasAddress, QasStatus, SubmitError, Undecided
from prism_ray.serving.meters import Counts
from prism_ray.serving.waiting import set_within

logger = logging.getLogger(__name__)

QAS_ACTOR = "qas"
HEARTBEAT_S = 0.25

ATTACH_AGAIN_S = 1.0
"""A replica that QAS does not know yet is told of it this often."""

ATTACH_TIMEOUT_S = 10.0


class QasUnavailable(Exception):
    """No QAS could be used for ``qas_timeout_s``."""


class QasLost(Exception):
    """The QAS that held the ticket has it no more; submit it anew."""


class LinkState(Enum):
    UP = "up"
    """QAS answers and can decide."""
    LOST = "lost"
    """It does not, since less than the timeout: wait for it."""
    DOWN = "down"
    """It has not for longer: dispatch directly."""


class QasLink:
    """One per ingress replica. ``start`` must run on the ingress's event loop.

    ``ingress`` is the incarnation that its tickets bear. A QAS without replicas, while Serve runs
    some, cannot decide and counts as one that does not answer: a re-created one begins like that.
    """

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        membership: Membership,
        timeout_s: float,
        ingress: str = "",
        get_actor: Callable[[str], Any] = serve.get_deployment_actor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handle = handle
        self._membership = membership
        self._timeout_s = timeout_s
        self._ingress = ingress
        self._get_actor = get_actor
        self._clock = clock
        self._actor: Any = None
        self._line: AnyLine | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._address: QasAddress | None = None
        self._user_config: Mapping[str, Any] | None = None
        self._tuned: tuple[str, Mapping[str, Any]] | None = None
        self._state = LinkState.LOST
        self._state_news = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._attaching: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._finding: asyncio.Future[Any] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._useful_s = clock()
        self.status: QasStatus | None = None

    @property
    def up(self) -> bool:
        return self._state is LinkState.UP

    @property
    def down(self) -> bool:
        return self._state is LinkState.DOWN

    @property
    def epoch(self) -> str:
        return self._address.epoch if self._address else ""

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def on_change(_: frozenset[str]) -> None:
            loop.call_soon_threadsafe(self._beat_now.set)

        self._membership.watch(on_change)
        self._tasks = [
            keep_running(self._meet_replicas, "prism-meet-replicas"),
            keep_running(self._heartbeat, "prism-qas-heartbeat"),
        ]

    # -- tickets --------------------------------------------------------------------------------

    async def submit(
        self, ticket: Ticket, waited_s: float, deadline_in_s: float | None, at_head: bool
    ) -> Decision | Undecided:
        """Wait for the decision. Raises QasLost (submit anew) or QasUnavailable (dispatch directly).

        On every way out without an answer QAS forgets the ticket, now or when it wakes up.
        """
        asked_s = self._clock()
        while not self.up:
            if self.down:
                raise QasUnavailable
            await self._state_news.wait()
        age_s = waited_s + self._clock() - asked_s
        actor, line = self._actor, self._line
        assert line is not None
        call = line.call("submit", ticket, age_s, deadline_in_s, at_head)
        try:
            answer: Decision | Undecided = await self._answer_or_down(call)
        except RayTaskError:
            raise
        except RayActorError:
            self._lose(actor, "it died")
            raise QasLost from None
        except RayError as error:
            logger.warning("QAS call failed: %s", error)
            line.tell("cancel", ticket.request_id, ticket.attempt)
            raise QasLost from None
        except (QasUnavailable, asyncio.CancelledError):
            line.tell("cancel", ticket.request_id, ticket.attempt)
            raise
        finally:
            call.cancel()
        if isinstance(answer, Undecided) and self._may_come_again(answer):
            raise QasLost
        return answer

    async def _answer_or_down(self, call: asyncio.Future[Any]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        call.add_done_callback(lambda call: _pass_on(call, answer))
        try:
            return await answer
        finally:
            self._waiting.discard(answer)

    def _may_come_again(self, answer: Undecided) -> bool:
        if answer.error is SubmitError.NO_REPLICA and self._membership.replicas:
            self._set_state(LinkState.LOST)  # until a heartbeat finds replicas there
            return True
        return answer.error is SubmitError.FORGOTTEN

    def cancel(self, request_id: str, attempt: int) -> None:
        """Tell QAS that the client left; never waits."""
        if self._line is not None:
            self._line.tell("cancel", request_id, attempt)

    def report_gone(self, replica: str) -> None:
        """A call to the replica found it dead: QAS must not wait for Serve to notice."""
        if self._actor is not None:
            self._actor.replica_gone.remote(replica)

    def report_doubt(self, replica: str) -> None:
        """A call to the replica failed, and it may be alive: QAS knows when it heard it last."""
        if self._actor is not None:
            self._actor.replica_doubted.remote(replica)

    # -- people ---------------------------------------------------------------------------------

    def tune(self, user_config: Mapping[str, Any]) -> None:
        """Hand a checked ``user_config`` to QAS, and to every QAS that comes after it."""
        self._user_config = user_config
        self._beat_now.set()

    async def state(self, top: int) -> dict[str, Any]:
        result: dict[str, Any] = await self._ask("state", top)
        return result

    async def explain(self, request_id: str) -> dict[str, Any] | None:
        result: dict[str, Any] | None = await self._ask("explain", request_id)
        return result

    async def check(self) -> dict[str, int]:
        result: dict[str, int] = await self._ask("check")
        return result

    async def metrics(self, counts: Counts) -> bytes:
        """The application's metrics as text; ``counts`` is what this ingress counted last."""
        text: bytes = await self._ask("metrics", counts)
        return text

    def count(self, counts: Counts) -> bool:
        """Hand on what this ingress counted; False while no QAS answers. A QAS dies with its counts."""
        if not self.up:
            return False
        self._actor.count.remote(counts)
        return True

    def flushed(self, replica: str) -> None:
        """Tell QAS that a replica's prefix cache was emptied."""
        if self._actor is not None:
            self._actor.flushed.remote(replica)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            raise QasUnavailable
        try:
            call = _result(getattr(self._actor, method).remote(*arguments))
            return await asyncio.wait_for(call, max(self._timeout_s, ATTACH_TIMEOUT_S))
        except (RayActorError, TimeoutError):
            raise QasUnavailable from None

    # -- heartbeat ------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        while True:
            actor = self._actor
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._beat()
            except RayActorError:
                self._lose(actor or self._actor, "it died")
            except (TimeoutError, ValueError, RayError) as error:
                self._note_silence(error)
            self._beat_now.clear()
            await set_within(self._beat_now, HEARTBEAT_S)

    async def _beat(self) -> None:
        if self._actor is None:
            actor = await self._find_actor()
            address: QasAddress = await _result(actor.address.remote())
            self._line = await open_line(address.line, actor)
            self._address, self._actor = address, actor
        assert self._address is not None
        await self._tune(self._address.epoch)
        members = self._membership.replicas
        self.status = status = await _result(self._actor.ping.remote(self._ingress, members))
        for replica in members - set(status.attached):
            self._attach(replica, self._address)
        if status.attached or not members:
            self._useful_s = self._clock()
            self._set_state(LinkState.UP)
        else:
            self._note_silence("no replica is attached")

    async def _find_actor(self) -> Any:
        """ValueError while there is none. It asks the cluster's control store, which may block."""
        if self._finding is None:
            self._finding = asyncio.ensure_future(asyncio.to_thread(self._get_actor, QAS_ACTOR))
        try:
            return await asyncio.shield(self._finding)
        finally:
            if self._finding.done():
                self._finding = None

    async def _tune(self, epoch: str) -> None:
        wanted = self._user_config
        if wanted is None or self._tuned == (epoch, wanted):
            return
        try:
            await _result(self._actor.tune.remote(wanted))
        except RayTaskError as error:
            logger.error("QAS refuses the user_config: %s", error)
        self._tuned = (epoch, wanted)

    def _lose(self, actor: Any, why: str) -> None:
        """``actor`` is dead; look for the one that takes its place."""
        if self._actor is actor:
            self._actor = None
            if self._line is not None:
                self._line.close()
        self._note_silence(why)

    def _note_silence(self, why: object) -> None:
        silent_s = self._clock() - self._useful_s
        if silent_s < self._timeout_s:
            self._set_state(LinkState.LOST)
        elif not self.down:
            logger.warning(
                "QAS is no use for %.1f s (%s): dispatching directly", silent_s, why or "silent"
            )
            self._set_state(LinkState.DOWN)

    def _set_state(self, state: LinkState) -> None:
        if state is self._state:
            return
        if self._state is LinkState.DOWN and state is LinkState.LOST:
            return  # only an answer ends direct dispatch
        if self._state is LinkState.DOWN:
            logger.info("QAS answers again")
        self._state = state
        self._state_news.set()
        self._state_news = asyncio.Event()
        if state is not LinkState.UP:
            self._beat_now.set()
        if state is LinkState.DOWN:
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(QasUnavailable())

    # -- replicas -------------------------------------------------------------------------------

    async def _meet_replicas(self) -> None:
        """A handle makes its router, and so learns of replicas, with its first call."""
        while not self._membership.replicas:
            try:
                await _result(self._handle.options(session_id="").name_of.remote())
            except (RayError, RayServeException) as error:
                logger.warning("no replica answers yet: %s", error)
                await asyncio.sleep(1.0)

    def _attach(self, replica: str, address: QasAddress) -> None:
        """Tell a replica where this QAS is, unless that is under way; telling twice does no harm."""
        key = (address.epoch, replica)
        if key in self._attaching:
            return
        task = asyncio.create_task(self._attach_one(replica, address), name="prism-attach")
        self._attaching[key] = task
        task.add_done_callback(lambda _: self._attaching.pop(key, None))

    async def _attach_one(self, replica: str, address: QasAddress) -> None:
        try:
            call = self._handle.options(session_id=replica).attach.remote(address)
            await asyncio.wait_for(_result(call), ATTACH_TIMEOUT_S)
            self._beat_now.set()
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("replica %s was not attached yet: %s", replica, error)
        await asyncio.sleep(ATTACH_AGAIN_S)


def _pass_on(call: asyncio.Future[Any], answer: asyncio.Future[Any]) -> None:
    if call.cancelled():
        answer.cancel()
        return
    error = call.exception()
    if answer.done():
        return
    if error is None:
        answer.set_result(call.result())
    else:
        answer.set_exception(error)


async def _result(reference: Any) -> Any:
    return await reference


def actor_handle(name: str) -> Any:
    """The QAS actor by its Ray name, from anywhere in the cluster. ValueError if it is not there."""
    return ray.get_actor(name, namespace="serve")
