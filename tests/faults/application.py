"""A deployed application as faults see it: whom they can hit, and whether all is as it should be."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import httpx
import ray
from ray import serve

from loadgen.bench.handles import replica_handle
from prism_ray.serving.direct import SLOTS
from tests.faults.processes import CONTROLLER, INGRESS, PROXY, QAS, REPLICA, living, replica_name
from tests.faults.replicas import CHUNK

CHECK_S = 0.1
CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Application:
    """The application ``default`` behind ``base_url``, and how many of each it should have.

    ``start_s``: how long its first replicas took to start; those that take a lost one's place are
    given as long several times over. ``probed``: this object's own requests, as ``Books`` counts them.
    """

    base_url: str
    replicas: int
    ingresses: int
    start_s: float = 85.0
    probed: Counter[str] = field(default_factory=Counter)

    def client(self) -> httpx.AsyncClient:
        """One that keeps no connection: a server that ends closes them while they are idle."""
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.base_url, timeout=CALL_TIMEOUT_S, limits=limits)

    async def state(self, http: httpx.AsyncClient) -> dict[str, Any] | None:
        """What QAS says of itself; None while nobody answers that."""
        with contextlib.suppress(httpx.HTTPError):
            answer = await http.get("/prism/state")
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
        return None

    async def until_normal(
        self,
        http: httpx.AsyncClient,
        gone: Collection[int] = (),
        timeout_s: float | None = None,
    ) -> float:
        """Wait until nothing shows of a fault that ended the processes ``gone``; how long that took.

        AssertionError, with what is still amiss, if it takes too long: by default, a minute and four
        times what the first replicas took to start.
        """
        start_s = time.monotonic()
        timeout_s = 60.0 + 4 * self.start_s if timeout_s is None else timeout_s
        while (amiss := await self.amiss(http, gone)) is not None:
            assert time.monotonic() < start_s + timeout_s, f"not normal again: {amiss}"
            await asyncio.sleep(CHECK_S)
        return time.monotonic() - start_s

    async def amiss(self, http: httpx.AsyncClient, gone: Collection[int] = ()) -> str | None:
        """What is not as it should be; None if all is.

        All processes run, none of them is one of ``gone``, Serve is content, QAS has every replica
        and decides for it, and a request is answered by its decision.
        """
        wanted = ((REPLICA, self.replicas), (INGRESS, self.ingresses), (QAS, 1), (PROXY, 1))
        for kind, count in (*wanted, (CONTROLLER, 1)):
            pids = await asyncio.to_thread(living, kind)
            if len(pids) != count or set(pids.values()) & set(gone):
                return f"{kind}: {pids}"
        names = {replica_name(n) for n in await asyncio.to_thread(living, REPLICA)}
        state = await self.state(http)
        if state is None:
            return "no QAS answers"
        open_for_work = {r["replica"] for r in state["replicas"] if not r["draining"]}
        if open_for_work != names or len(state["replicas"]) != len(names):
            return f"QAS decides for {open_for_work}, and Serve runs {names}"
        status = await asyncio.to_thread(_serve_status)
        if status != "RUNNING":
            return f"Serve: {status}"
        return await self._probe(http)

    async def _probe(self, http: httpx.AsyncClient) -> str | None:
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 1,
            "prism": {"report": True},
        }
        try:
            answer = await http.post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            self.probed[""] += 1
            return f"a request failed: {error!r}"
        # An answer that is no JSON is the proxy's, about an ingress that it lost.
        ours = answer.headers.get("content-type", "").startswith("application/json")
        counted_as = "ok" if answer.status_code == 200 else str(answer.status_code)
        self.probed[counted_as if ours else ""] += 1
        if answer.status_code != 200:
            return f"a request got {answer.status_code}: {answer.text[:200]}"
        reason = answer.json()["prism"]["reason"]
        return "QAS does not decide" if reason == "qas_unavailable" else None

    async def open_books(self, http: httpx.AsyncClient) -> dict[str, Any]:
        """Every counter, credit and slot that is not as in an idle application.

        QAS recounts its own first.
        """
        found: dict[str, Any] = {}
        for name in await asyncio.to_thread(living, QAS):
            actor = await asyncio.to_thread(ray.get_actor, name, "serve")
            found |= _nonzero("qas", await _value(actor.check.remote()))
        state = await self.state(http)
        assert state is not None
        for replica in state["replicas"]:
            name = replica["replica"]
            counters = ("sent", "not_prefilled", "foreign", "running", "engine_waiting")
            found |= _nonzero(f"qas.{name}", {key: replica[key] for key in counters})
            books = await _value(call_replica(name, "books"))
            found |= _nonzero(f"replica.{name}", books)
            if replica["credit_tokens"] != 2 * CHUNK:
                found[f"qas.{name}.credit_tokens"] = replica["credit_tokens"]
        for name in await asyncio.to_thread(living, INGRESS):
            actor = await asyncio.to_thread(ray.get_actor, name, "serve")
            held = await _value(actor.__ray_call__.remote(_held_by_ingress))
            found |= _nonzero(f"ingress.{replica_name(name)}", held)
        return found

    async def until_books_close(self, http: httpx.AsyncClient, timeout_s: float = 20.0) -> float:
        """Wait until all books are closed; how long that took.

        AssertionError, with those that are not, if it takes too long.
        """
        start_s = time.monotonic()
        while held := await self.open_books(http):
            assert time.monotonic() < start_s + timeout_s, f"books did not close: {held}"
            await asyncio.sleep(0.2)
        return time.monotonic() - start_s


def call_replica(name: str, method: str, *arguments: Any) -> Any:
    """Call a method of one replica; what comes is to be awaited."""
    return getattr(replica_handle().options(session_id=name), method).remote(*arguments)


def _held_by_ingress(actor: Any) -> dict[str, int]:
    """In the ingress's process: what it holds of requests."""
    ingress = actor._replica_impl._user_callable_wrapper._callable
    dispatching = ingress._dispatching
    return {
        "held_bytes": ingress._held.bytes,
        "direct_load": sum(dispatching._direct_load.values()),
        "direct_slots": SLOTS - dispatching._direct._slots._value,
        "waiting_for_qas": len(ingress._qas._waiting),
        "ongoing": actor.get_num_ongoing_requests(),
    }


def _nonzero(where: str, counts: dict[str, Any]) -> dict[str, Any]:
    return {f"{where}.{name}": value for name, value in counts.items() if value}


def _serve_status() -> str:
    applications = serve.status().applications
    return str(applications["default"].status.value) if "default" in applications else "gone"


async def _value(reference: Any) -> Any:
    async with asyncio.timeout(CALL_TIMEOUT_S):
        return await reference
