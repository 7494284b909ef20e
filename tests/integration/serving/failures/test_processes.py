"""One fault at a time, under load, on simulated engines: what clients see, what is lost, what follows.

Faults that tests beside this directory cover are not repeated: a killed QAS with a full window, one
that stood still, a killed ingress with tickets in the window (``test_updates``), faults of a replica's
own (``test_replica_faults``), the store (``test_store``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loadgen.rows import RequestRow
from tests.faults.application import Application, call_replica
from tests.faults.kinds import kind, shift_clocks
from tests.faults.load import STREAMS_END, Load, redone, seen
from tests.faults.processes import REPLICA, living, replica_name
from tests.faults.replicas import SIMULATED, FaultyReplica

pytestmark = pytest.mark.serve

REPLICAS = SIMULATED["replicas"]["count"]

CONFIG: dict[str, Any] = SIMULATED | {"limits": {"qas_timeout_s": 5.0, "keepalive_after_s": 10.0}}
"""A machine that is busy with other things must not look like a QAS that does not answer."""


@pytest.fixture(scope="module")
def app(run_app: Callable[..., httpx.Client]) -> Application:
    client = run_app(CONFIG, replica_class=FaultyReplica)
    base_url = str(client.base_url).rstrip("/")
    return Application(base_url, REPLICAS, SIMULATED["ingress"]["count"])


async def one_fault(app: Application, name: str, seed: int = 0) -> list[RequestRow]:
    """A fault while the window is full; every request's row."""
    async with app.client() as http:
        await app.until_normal(http)
        async with Load(app.base_url, seed=seed) as load:
            await load.burst(60)
            await asyncio.sleep(1.5)
            gone = await kind(name).inject(random.Random(seed))
            normal_after_s = await app.until_normal(http, gone)
        await app.until_books_close(http)
        assert len(load.rows) == load.sent
    longest_s = max(row.latency_s or 0.0 for row in load.rows if row.answered)
    print(
        f"{name}: {dict(seen(load.rows))}, {redone(load.rows)} decided anew, the longest took "
        f"{longest_s:.1f} s; normal after {normal_after_s:.1f} s"
    )
    return load.rows


@pytest.mark.parametrize("name", ["replica killed", "engine crashed"])
def test_a_replica_lost_under_load_ends_only_answers_that_had_begun(
    app: Application, name: str
) -> None:
    rows = asyncio.run(one_fault(app, name))
    ends = seen(rows)
    assert set(ends) == {"answered"} | STREAMS_END, "some had begun, and nothing else was lost"
    assert redone(rows), "what had not begun there was decided anew"
    lost = sum(count for end, count in ends.items() if end != "answered")
    assert lost <= SIMULATED["replicas"]["max_running"], "no more than ran there"


def test_a_killed_controller_costs_nothing_and_its_successor_replaces_what_dies(
    app: Application,
) -> None:
    rows = asyncio.run(one_fault(app, "controller killed"))
    assert set(seen(rows)) == {"answered"}
    assert qas_decided_all(rows)
    rows = asyncio.run(one_fault(app, "replica killed", seed=1))
    assert set(seen(rows)) <= {"answered"} | STREAMS_END


def test_a_slow_replica_gets_less_and_the_others_requests_do_not_wait_for_it(
    app: Application,
) -> None:
    rows, slow, since_s, until_s = asyncio.run(_with_a_slow_replica(app))
    assert set(seen(rows)) == {"answered"}
    before = [r for r in rows if r.scheduled_s < since_s]
    # Once it has been found slow; what it had been given by then is its own.
    after = [r for r in rows if since_s + 4 < r.scheduled_s < until_s]
    others = [r for r in after if _replica(r) != slow]
    share = 1 - len(others) / len(after)
    ttft_s = [_median([_ttft_s(r) for r in some]) for some in (before, others)]
    # One that it answers as soon as anybody would.
    soon = [r for r in rows if r.scheduled_s > until_s and _replica(r) == slow and _ttft_s(r) < 1.0]
    assert soon, "it gets requests again, and answers them"
    normal_after_s = min(r.ended_s for r in soon if r.ended_s is not None) - until_s
    print(
        f"the slow replica's share {share:.2f} of {len(after)}; TTFT before and others' {ttft_s}; "
        f"normal {normal_after_s:.1f} s after it is as fast again"
    )
    assert share < 0.5 / REPLICAS
    assert ttft_s[1] < ttft_s[0] + 1.0, "a step of the slow one takes 0.25 s, an answer of it 9 s"


async def _with_a_slow_replica(app: Application) -> tuple[list[RequestRow], str, float, float]:
    """Rows, the slow replica, and from when until when it was slow."""
    async with app.client() as http:
        await app.until_normal(http)
        slow = replica_name(sorted(await asyncio.to_thread(living, REPLICA))[0])
        async with Load(app.base_url, rate_per_s=8.0) as load:
            await asyncio.sleep(4.0)
            await call_replica(slow, "set_speed", 0.1)
            since_s = load.now_s
            await asyncio.sleep(12.0)
            await call_replica(slow, "set_speed", 1.0)
            until_s = load.now_s
            await asyncio.sleep(8.0)
        await app.until_books_close(http)
    return load.rows, slow, since_s, until_s


def test_clocks_that_jump_by_an_hour_change_nothing(app: Application) -> None:
    rows = asyncio.run(_with_jumping_clocks(app))
    assert set(seen(rows)) == {"answered"}
    assert qas_decided_all(rows), "nobody was taken for dead"
    for row in rows:
        assert row.prism is not None
        terms: dict[str, Any] = row.prism["ttft"]
        assert all(0 <= seconds < 60 for seconds in terms.values()), terms


async def _with_jumping_clocks(app: Application) -> list[RequestRow]:
    async with app.client() as http:
        await app.until_normal(http)
        async with Load(app.base_url) as load:
            for shift_s in (3600.0, -3600.0, 0.0):
                await load.burst(30)
                await asyncio.sleep(0.5)  # some wait, some run
                assert await shift_clocks(shift_s) == app.replicas + app.ingresses + 1
                print(
                    f"clocks wrong by {shift_s} s: normal after {await app.until_normal(http):.1f} s"
                )
                await asyncio.sleep(3.0)
                assert await app.amiss(http) is None
        await app.until_books_close(http)
    return load.rows


def qas_decided_all(rows: list[RequestRow]) -> bool:
    """Whether no ingress had to dispatch by itself."""
    return all(row.prism and row.prism["reason"] != "qas_unavailable" for row in rows)


def _replica(row: RequestRow) -> str | None:
    return row.prism["replica"] if row.prism else row.replica


def _ttft_s(row: RequestRow) -> float:
    assert row.ttft_s is not None
    return row.ttft_s


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
