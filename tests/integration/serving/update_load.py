"""Continuous load for the tests of updates, and a replica that notes what its engine admitted.

Every request is numbered in its own text, so that an answer of one that was lost, or an engine that
took one twice, shows.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import ray
from ray import serve

from prism_ray.application import assemble
from prism_ray.config import PrismConfig
from prism_ray.engine.base import PrefillStarted
from prism_ray.serving.replica import Replica


@ray.remote(num_cpus=0)
class Ledger:
    """Outlives replicas: which request ids engines admitted, and in which order requests came."""

    def __init__(self) -> None:
        self._admitted: Counter[str] = Counter()

    def note(self, request_id: str) -> None:
        self._admitted[request_id] += 1

    def admitted(self) -> dict[str, int]:
        return dict(self._admitted)

    def clear(self) -> None:
        self._admitted.clear()


LEDGER = "prism-test-ledger"


class NotingReplica(Replica):
    """Tells the ledger of every admission of a request's first choice."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        self._ledger = ray.get_actor(LEDGER, namespace="tests")
        await super().__init__(config_json)
        note = self._on_engine_event

        def noting(event: Any) -> None:
            choice = self._choices.get(event.request_id)
            if isinstance(event, PrefillStarted) and choice is not None and choice.index == 0:
                self._ledger.note.remote(choice.held.key[1])
            note(event)

        self._on_engine_event = noting  # type: ignore[method-assign]


@dataclass
class Outcome:
    """What became of one request."""

    number: int
    sent_s: float
    done_s: float = 0.0
    status: int = 0
    reason: str = ""
    attempts: int = 0
    error: str = ""


@dataclass
class Load:
    """Requests at a steady rate, each asked once: a client that does not retry.

    ``rate_per_s`` may be changed meanwhile.
    """

    base_url: str
    rate_per_s: float = 8.0
    words: int = 60
    max_tokens: int = 2
    outcomes: list[Outcome] = field(default_factory=list)

    async def during(self, change: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> list[Outcome]:
        """Keep asking while ``change`` happens and a little before and after; all outcomes."""
        # No connection is kept: one that the server closes while idle is the client's own error.
        limits = httpx.Limits(max_connections=2000, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self.base_url, timeout=180.0, limits=limits) as http:
            asking = asyncio.create_task(self._ask_on(http))
            await asyncio.sleep(2.0)
            try:
                await change(http)
                await asyncio.sleep(2.0)
            finally:
                asking.cancel()
                requests = await asking
            await asyncio.gather(*requests)
        return self.outcomes

    async def burst(self, http: httpx.AsyncClient, count: int) -> list[asyncio.Task[None]]:
        """So many requests at once."""
        return [asyncio.create_task(self._ask(http)) for _ in range(count)]

    async def _ask_on(self, http: httpx.AsyncClient) -> list[asyncio.Task[None]]:
        requests: list[asyncio.Task[None]] = []
        try:
            while True:
                requests.append(asyncio.create_task(self._ask(http)))
                await asyncio.sleep(1 / self.rate_per_s)
        except asyncio.CancelledError:
            return requests

    async def _ask(self, http: httpx.AsyncClient) -> None:
        outcome = Outcome(len(self.outcomes), time.monotonic())
        self.outcomes.append(outcome)
        text = " ".join(f"word{(outcome.number * 7 + i) % 997}" for i in range(self.words))
        body = {
            "messages": [{"role": "user", "content": f"Number {outcome.number}: {text}"}],
            "max_tokens": self.max_tokens,
            "prism": {"report": True},
        }
        try:
            answer = await http.post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            outcome.error = repr(error)
        else:
            outcome.status = answer.status_code
            if answer.status_code == 200:
                report = answer.json()["prism"]
                outcome.reason, outcome.attempts = report["reason"], report["attempts"]
            else:
                outcome.error = answer.text[:300]
        outcome.done_s = time.monotonic()


def ledger() -> Any:
    return ray.get_actor(LEDGER, namespace="tests")


def assert_each_answered_once(outcomes: list[Outcome], *, least: int = 1, besides: int = 0) -> None:
    """Nothing lost, nothing doubled: one 200 each, and each admitted by exactly one engine.

    ``besides``: requests that engines admitted and that are not among ``outcomes``.
    """
    failed = [o for o in outcomes if o.status != 200]
    assert not failed, failed[:5]
    assert len(outcomes) >= least
    admitted = ray.get(ledger().admitted.remote())
    doubled = {name: times for name, times in admitted.items() if times > 1}
    assert not doubled, f"admitted more than once: {doubled}"
    assert len(admitted) == len(outcomes) + besides


def actors(fragment: str) -> dict[str, int]:
    """Living actors of Serve whose name contains ``fragment``: name -> process id."""
    found = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if fragment in actor["name"]:
            handle = ray.get_actor(actor["name"], namespace=actor["namespace"])
            found[actor["name"]] = ray.get(handle.__ray_call__.remote(_pid), timeout=30)
    return found


def _pid(_: Any) -> int:
    return os.getpid()


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application with noting replicas, for a Serve config."""
    return assemble(PrismConfig.load(arguments["config"]), replica_class=NotingReplica)
