"""A QAS actor after another one: what the first knew is known again, through a real server.

The actors are the product's own, without Ray around them; the test speaks for the replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgpack
import pytest

from prism_ray.config import PrismConfig
from prism_ray.model import (
    NO_GAP,
    Completion,
    Decision,
    Outcome,
    ReplicaCapacity,
    Segment,
    Skeleton,
    Ticket,
)
from prism_ray.serving import qas_actor, qas_telemetry, warm_restart
from prism_ray.serving.messages import Hello, PrefillDone, Report
from prism_ray.serving.qas_actor import QasActor
from prism_ray.telemetry import codec
from prism_ray.telemetry.keys import Keys
from prism_ray.telemetry.reader import load_checkpoint
from prism_ray.telemetry.store import StoreLimits

from .real_server import RealServer

CAPACITY = ReplicaCapacity(pool_tokens=100_000, max_running=16, prefill_ahead_tokens=8_192)
DOCUMENT_TOKENS = 900
BALANCING = ("rebalance", "replicate", "spill", "decode_balance")


class Qas:
    """One actor, and the replicas a and b as it meets them."""

    def __init__(self, url: str, hellos: int, **engines: str) -> None:
        config = PrismConfig.load(
            {
                "extends": "simulated",
                "replicas": {"count": 2},
                # In a life of milliseconds everything looks busy: no balancing.
                "placement": {"policy": "e2", "params": dict.fromkeys(BALANCING, False)},
                "scheduler": {"round_interval_s": 0.0},
                "redis": {"url": url},
            }
        )
        self.actor = QasActor("app", config.to_json())
        self._lives = {name: f"{engines.get(name, name)}.{hellos}" for name in "ab"}
        self._sequence = 0

    async def meet(self) -> None:
        for name, life in self._lives.items():
            await self.actor.hello(Hello(name, life, "m", CAPACITY))

    async def decide(self, name: str, document: bytes) -> Decision:
        skeleton = Skeleton(None, (Segment(document, DOCUMENT_TOKENS),), (NO_GAP,), 50)
        ticket = Ticket(name, skeleton, 0.0, max_new_tokens=1)
        decision = await asyncio.wait_for(self.actor.submit(ticket, 0.0, None, False), 5.0)
        assert isinstance(decision, Decision)
        return decision

    async def serve(self, name: str, document: bytes) -> str:
        """Through a whole life; returns the replica."""
        replica = (await self.decide(name, document)).replica
        self._sequence += 1
        await self.actor.report(
            Report(
                replica,
                self._lives[replica],
                self._sequence,
                1,
                prefilled=(PrefillDone(name, 0, DOCUMENT_TOKENS + 50, 0),),
                completed=(Completion(name, 0, Outcome.FINISHED),),
            )
        )
        return replica

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        self.actor._telemetry.meters.take()
        counters = self.actor._telemetry.meters.total.counters
        return {labels: value for (own, labels), value in counters.items() if own == name}

    @property
    def restored(self) -> float:
        return self.counted("prism_replicas_restored_total").get((), 0)

    @property
    def ready(self) -> bool:
        """It has looked for checkpoints."""
        return self.actor._telemetry._checkpoint_at_s is not None

    async def explain(self, request_id: str) -> dict[str, Any]:
        told = await self.actor.explain(request_id)
        assert told is not None
        return told


@contextlib.asynccontextmanager
async def qas(url: str, hellos: int = 1, **engines: str) -> AsyncIterator[Qas]:
    one = Qas(url, hellos, **engines)
    try:
        yield one
    finally:  # as by a kill: nothing more is said
        store = one.actor._telemetry._store
        if store is not None:
            store._buffer.take(10**6)
            await store.close(timeout_s=0.1)
        for task in one.actor._tasks:
            task.remove_done_callback(one.actor._die_with)
            task.cancel()
        await asyncio.gather(*one.actor._tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  (what is awaited sets no event)
            await asyncio.sleep(0.01)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealServer]:
    monkeypatch.setattr(qas_telemetry, "CHECKPOINT_S", 0.1)
    monkeypatch.setattr(qas_actor, "HOUSEKEEPING_S", 0.02)
    with RealServer() as running:
        yield running


async def first_life(server: RealServer) -> str:
    """A QAS that serves one document often and is killed; returns the document's replica."""
    async with qas(server.url) as first:
        await first.meet()
        await until(lambda: first.ready)
        replicas = {await first.serve(f"q{n}", b"doc") for n in range(20)}
        assert len(replicas) == 1
        looked_at_s = time.time() + 0.5  # by then every replica was

        async def written() -> bool:
            found = [await load_checkpoint(server.url, "app", n) for n in warm_restart.CHECKPOINTS]
            return all(f is not None and f["at_unix_s"] > looked_at_s for f in found)

        async with asyncio.timeout(10):
            while not await written():  # noqa: ASYNC110  (the server sets no event)
                await asyncio.sleep(0.05)
        return replicas.pop()


async def test_the_next_qas_knows_where_a_document_is(server: RealServer) -> None:
    home = await first_life(server)
    async with qas(server.url, hellos=2) as second:
        await second.meet()
        await until(lambda: second.restored == 2)
        await until(lambda: second.ready)
        decision = await second.decide("next", b"doc")
        assert decision.replica == home
        assert decision.predicted_cached_tokens == DOCUMENT_TOKENS
        placement = (await second.explain("next"))["placement"]
        assert placement["kind"] == "exploit"
        assert placement["numbers"]["cached_tokens"] == DOCUMENT_TOKENS
        assert placement["numbers"]["load_s"] > 0
        assert second.counted("prism_checkpoints_ignored_total") == {}
        await second.actor.check()


async def test_replicas_that_come_later_than_the_checkpoints_get_their_part_too(
    server: RealServer,
) -> None:
    home = await first_life(server)
    async with qas(server.url, hellos=2) as second:
        await second.actor.ping("ingress", frozenset("ab"))
        await until(lambda: second.ready)
        assert second.restored == 0
        await second.meet()
        assert second.restored == 2
        assert (await second.decide("next", b"doc")).replica == home


async def test_an_engine_in_another_life_has_an_empty_cache(server: RealServer) -> None:
    home = await first_life(server)
    async with qas(server.url, 2, **{home: "another"}) as second:
        await second.meet()
        await until(lambda: second.ready)
        assert second.restored == 1
        decision = await second.decide("next", b"doc")
        assert decision.predicted_cached_tokens == 0
        assert (await second.explain("next"))["placement"]["kind"] == "explore"
        await second.actor.check()


def _aged(stored: dict[str, Any]) -> bytes:
    return codec.encode({**stored, "at_unix_s": stored["at_unix_s"] - warm_restart.YOUNG_S - 1})


def _of_another_version(stored: dict[str, Any]) -> bytes:
    return codec.encode({**stored, "value": {**stored["value"], "version": 77}})


def _of_another_schema(stored: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb({**stored, "v": 77})
    return packed


def _without_replicas(stored: dict[str, Any]) -> bytes:
    return codec.encode({**stored, "value": {**stored["value"], "replicas": [["?"]]}})


def _from_no_time(stored: dict[str, Any]) -> bytes:
    return codec.encode({**stored, "at_unix_s": "noon"})


def _noise(stored: dict[str, Any]) -> bytes:
    return b"\xc1 noise"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_aged, "old"),
        (_of_another_version, "unknown_version"),
        (_of_another_schema, "unknown_version"),
        (_without_replicas, "malformed"),
        (_from_no_time, "malformed"),
        (_noise, "malformed"),
    ],
)
async def test_what_cannot_be_used_is_ignored_and_counted(
    server: RealServer, change: Callable[[dict[str, Any]], bytes], reason: str
) -> None:
    await first_life(server)
    for name in warm_restart.CHECKPOINTS:
        stored = await load_checkpoint(server.url, "app", name)
        assert stored is not None
        with server.client() as client:
            client.set(Keys("app").checkpoint(name), change(stored))
    async with qas(server.url, hellos=2) as second:
        await second.meet()
        await until(lambda: second.ready)
        assert second.restored == 0
        ignored = second.counted("prism_checkpoints_ignored_total")
        assert ignored == {(reason,): len(warm_restart.CHECKPOINTS)}
        assert (await second.decide("next", b"doc")).predicted_cached_tokens == 0
        text = (await second.actor.metrics(type(second.actor._telemetry.meters.total)())).decode()
        assert f'prism_checkpoints_ignored_total{{reason="{reason}"}} 2.0' in text


async def test_a_store_that_hangs_at_the_start_delays_nobody(server: RealServer) -> None:
    await first_life(server)
    server.signal(signal.SIGSTOP)
    async with qas(server.url, hellos=2) as second:
        await second.meet()
        assert (await second.decide("next", b"doc")).predicted_cached_tokens == 0
        assert not second.ready  # it still waits for the store; the decision did not
        assert not (await second.actor.state())["telemetry"]["store_up"]
        server.signal(signal.SIGCONT)
        await until(lambda: second.actor._telemetry.describe()["store_up"])


async def test_the_gauge_falls_and_rises_with_the_store(
    server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(StoreLimits(), heartbeat_s=0.1, io_timeout_s=0.5, backoff_cap_s=0.2)
    monkeypatch.setattr(qas_telemetry, "StoreLimits", partial(replace, limits))

    async def gauge(one: Qas, value: float) -> None:
        async with asyncio.timeout(10):
            while True:
                counts = type(one.actor._telemetry.meters.total)()
                text = (await one.actor.metrics(counts)).decode()
                if f"prism_telemetry_store_up {value}" in text:
                    return
                await asyncio.sleep(0.05)

    async with qas(server.url) as one:
        await one.meet()
        await gauge(one, 1.0)
        server.kill()
        await gauge(one, 0.0)
        began = time.perf_counter()
        for number in range(20):
            await one.serve(f"q{number}", b"doc")
        assert time.perf_counter() - began < 5.0
        server.start()
        await gauge(one, 1.0)
        server.signal(signal.SIGSTOP)
        await gauge(one, 0.0)
        server.signal(signal.SIGCONT)
        await gauge(one, 1.0)
        await one.actor.check()


async def test_checkpoints_expire_on_the_server(server: RealServer) -> None:
    await first_life(server)
    with server.client() as client:
        for name in warm_restart.CHECKPOINTS:
            assert 0 < client.ttl(Keys("app").checkpoint(name)) <= warm_restart.YOUNG_S
