"""The real engine dies under load: SGLang's scheduler process alone, and its replica as a whole."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.faults.application import Application
from tests.faults.kinds import kind
from tests.faults.load import STREAMS_END, Load, seen
from tests.faults.processes import REPLICA, describe, family, living, replica_name, runs
from tests.faults.replicas import MIXED, MixedReplica, real_replica_pid

pytestmark = [pytest.mark.serve, pytest.mark.real_engine, pytest.mark.timeout(1200)]

CONFIG: dict[str, Any] = MIXED | {
    "replicas": MIXED["replicas"] | {"count": 2},
    "ingress": {"count": 1, "num_cpus": 0.1},
}


@pytest.fixture(scope="module")
def app(run_app: Callable[..., httpx.Client], random_tiny: Any) -> Application:
    client = run_app(CONFIG, replica_class=MixedReplica)
    return Application(str(client.base_url).rstrip("/"), 2, 1)


def _real() -> tuple[int, str]:
    """Process id and name of the replica with the real engine."""
    pid = real_replica_pid()
    assert pid is not None
    return pid, next(replica_name(n) for n, p in living(REPLICA).items() if p == pid)


WAYS = ("SGLang's scheduler process killed", "SGLang's replica killed")
WHOLE = os.environ.get("PRISM_CHAOS") == "1"


@pytest.mark.parametrize("name", WAYS if WHOLE else WAYS[:1])
def test_a_real_engine_that_dies_ends_only_answers_that_had_begun(
    app: Application, name: str
) -> None:
    asyncio.run(_dies(app, name))


async def _dies(app: Application, name: str) -> None:
    async with app.client() as http:
        await app.until_normal(http)
        pid, replica = await asyncio.to_thread(_real)
        engine = family([pid])
        assert any(p.name().startswith("sglang::") for p in engine), "also after the first one died"
        async with Load(app.base_url, rate_per_s=3.0, tokens=(100, 200)) as load:
            await load.burst(40)
            await _until_it_runs_some(app, http, replica)
            await asyncio.sleep(1.0)
            await kind(name).inject(random.Random(0))
            died_s = load.now_s
            await asyncio.sleep(3.0)
        # The other replica has served the rest by now; a new engine is still being started.
        await app.until_books_close(http)
        left = [describe(p) for p in engine if runs(p) and p.pid != pid]
    print(f"{name}: {dict(seen(load.rows))}")
    assert len(load.rows) == load.sent
    assert set(seen(load.rows)) == {"answered"} | STREAMS_END
    lost = [r for r in load.rows if not r.answered]
    assert {r.replica for r in lost} == {replica}
    late_s = [r.ended_s - died_s for r in lost if r.ended_s is not None]
    assert max(late_s) < 20.0, f"they are told, and do not wait for the next engine: {late_s}"
    assert not left, "nothing of the engine is left"


async def _until_it_runs_some(app: Application, http: httpx.AsyncClient, replica: str) -> None:
    """Until the real engine works on requests, and more wait for it."""
    async with asyncio.timeout(30.0):
        while True:
            state = await app.state(http)
            assert state is not None
            of_it = next(r for r in state["replicas"] if r["replica"] == replica)
            if (of_it["running"] or 0) >= 2 and state["waiting"]:
                return
            await asyncio.sleep(0.05)
