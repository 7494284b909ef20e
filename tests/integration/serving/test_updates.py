"""Updates and restarts under load: every request is answered once and admitted by one engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import ray
from ray import serve
from ray.serve._private.api import _get_global_client
from ray.serve.schema import ServeDeploySchema

from tests.faults.processes import INGRESS, living

from .contract_tools import Samples, idle, wait_until
from .update_load import (
    LEDGER,
    Ledger,
    Load,
    NotingReplica,
    Outcome,
    actors,
    assert_each_answered_once,
)

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2, "num_cpus": 0.5, "max_running": 8, "surge_percent": 50},
    "ingress": {"count": 1, "num_cpus": 0.1},
    "placement": {"policy": "least-loaded"},
    "engine": {
        "simulated": {
            "cost": "step-25ms",
            "chunked_prefill_tokens": 256,
            "max_prefill_tokens": 256,
            "pool_tokens": 20_000,
            "context_length": 4096,
        }
    },
}


@pytest.fixture(scope="module", autouse=True)
def _ledger(serve_port: int) -> Iterator[None]:
    ledger = Ledger.options(name=LEDGER, namespace="tests").remote()
    yield
    ray.kill(ledger)


@pytest.fixture
def base_url(serve_port: int) -> str:
    ray.get(ray.get_actor(LEDGER, namespace="tests").clear.remote())
    return f"http://127.0.0.1:{serve_port}"


def deploy(port: int, *deployments: dict[str, Any]) -> None:
    """By Serve's config, where a change of options alone restarts nothing."""
    schema = ServeDeploySchema.model_validate(
        {
            "http_options": {"host": "127.0.0.1", "port": port},
            "applications": [
                {
                    "name": "default",
                    "route_prefix": "/",
                    "import_path": "tests.integration.serving.update_load:build",
                    "args": {"config": CONFIG},
                    "deployments": list(deployments),
                }
            ],
        }
    )
    _get_global_client().deploy_apps(schema)
    deadline = time.monotonic() + 180
    while not _runs():
        assert time.monotonic() < deadline, serve.status()
        time.sleep(0.2)


def _runs() -> bool:
    """Whether the update has ended; Serve takes a moment to begin it."""
    time.sleep(0.5)
    applications = serve.status().applications
    return "default" in applications and applications["default"].status == "RUNNING"


async def ready(http: httpx.AsyncClient, replicas: int, timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            answer = await http.get("/ready")
            if answer.status_code == 200 and answer.json()["replicas"] == replicas:
                return
            await asyncio.sleep(0.2)


async def state(http: httpx.AsyncClient) -> dict[str, Any]:
    result: dict[str, Any] = (await http.get("/prism/state")).json()
    return result


async def at_least(http: httpx.AsyncClient, name: str, count: int) -> int:
    """Wait until the state's ``name`` has reached ``count``."""
    async with asyncio.timeout(60.0):
        while True:
            now = int((await state(http))[name])
            if now >= count:
                return now
            await asyncio.sleep(0.02)


def with_config(**changes: dict[str, Any]) -> dict[str, Any]:
    return CONFIG | {name: CONFIG.get(name, {}) | values for name, values in changes.items()}


def direct_decisions(base_url: str) -> float:
    """How many decisions without QAS the metrics have."""
    with httpx.Client(base_url=base_url, timeout=60.0) as client:
        return Samples(client).of("prism_decisions_total", reason="qas_unavailable")


def decided_directly(outcomes: list[Outcome]) -> int:
    return sum(o.reason == "qas_unavailable" for o in outcomes)


def test_a_redeploy_with_another_config_loses_and_doubles_nothing(
    run_app: Callable[..., httpx.Client], base_url: str
) -> None:
    run_app(CONFIG, replica_class=NotingReplica)
    epochs = []

    async def change(http: httpx.AsyncClient) -> None:
        epochs.append((await state(http))["epoch"])
        other = with_config(
            scheduler={"round_interval_s": 0.01},
            ingress={"count": 2},
            replicas={"count": 3},
        )
        await asyncio.to_thread(run_app, other, NotingReplica)
        await ready(http, 3)
        epochs.append((await state(http))["epoch"])

    outcomes = asyncio.run(Load(base_url).during(change))
    assert_each_answered_once(outcomes, least=50)
    assert epochs[0] != epochs[1], "the new ingresses have a QAS of their own"


def test_ingresses_and_replicas_come_and_go_without_a_restart(
    serve_port: int, base_url: str
) -> None:
    deploy(serve_port)
    epochs = set()
    replicas = {"name": "Replica"}

    async def change(http: httpx.AsyncClient) -> None:
        await ready(http, 2)
        for ingresses, engines in ((3, 3), (1, 2)):
            epochs.add((await state(http))["epoch"])
            await asyncio.to_thread(
                deploy,
                serve_port,
                {"name": "Ingress", "num_replicas": ingresses},
                replicas | {"num_replicas": engines},
            )
            await ready(http, engines)
        epochs.add((await state(http))["epoch"])

    outcomes = asyncio.run(Load(base_url).during(change))
    assert_each_answered_once(outcomes, least=50)
    assert len(epochs) == 1, "all ingresses share one QAS, and keep it"


def test_a_user_config_takes_effect_without_a_restart(serve_port: int, base_url: str) -> None:
    deploy(serve_port)
    pids = []

    async def too_long(http: httpx.AsyncClient) -> int:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        return (await http.post("/v1/chat/completions", json=body)).status_code

    async def change(http: httpx.AsyncClient) -> None:
        await ready(http, 2)
        pids.append(actors("Ingress"))
        limits = {"max_tokens": 2, "default_max_tokens": 2}
        tuned = {"limits": limits, "scheduler": {"round_interval_s": 0.05}}
        await asyncio.to_thread(deploy, serve_port, {"name": "Ingress", "user_config": tuned})
        assert await too_long(http) == 400
        pids.append(actors("Ingress"))

    outcomes = asyncio.run(Load(base_url).during(change))
    assert_each_answered_once(outcomes, least=30)
    assert pids[0] == pids[1], "neither ingress nor QAS was restarted"


def test_a_killed_qas_with_a_full_window_loses_and_doubles_nothing(
    serve_port: int, base_url: str
) -> None:
    deploy(serve_port)
    seen: dict[str, float] = {}

    load = Load(base_url)

    async def change(http: httpx.AsyncClient) -> None:
        await ready(http, 2)
        epoch = (await state(http))["epoch"]
        burst = await load.burst(http, 300)
        seen["waiting"] = await at_least(http, "waiting", 200)
        (pid,) = actors("::qas").values()
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60.0):
            while True:
                answer = await http.get("/prism/state")
                if answer.status_code == 200:
                    now = answer.json()
                    if now["epoch"] != epoch and len(now["replicas"]) == 2:
                        break
                await asyncio.sleep(0.1)
        seen["normal_after_s"] = time.monotonic() - killed_s
        await asyncio.gather(*burst)

    outcomes = asyncio.run(load.during(change))
    again = sum(o.attempts > 1 for o in outcomes)
    longest_s = max(o.done_s - o.sent_s for o in outcomes)
    print(
        f"full window of {seen['waiting']}, {len(outcomes)} requests: {again} decided anew, "
        f"{decided_directly(outcomes)} of them directly, the longest took {longest_s:.1f} s; "
        f"normal again after {seen['normal_after_s']:.1f} s"
    )
    assert_each_answered_once(outcomes, least=300)
    assert outcomes[-1].reason != "qas_unavailable", "QAS decides again"
    # The QAS that is asked is the next one: it was told what was decided before it was there.
    assert direct_decisions(base_url) >= decided_directly(outcomes) > 0
    assert any(o.attempts > 1 for o in outcomes), "what waited was submitted anew"


def test_a_qas_that_stood_still_decides_nothing_late(serve_port: int, base_url: str) -> None:
    deploy(serve_port)
    load = Load(base_url)
    before = direct_decisions(base_url)

    async def change(http: httpx.AsyncClient) -> None:
        await ready(http, 2)
        burst = await load.burst(http, 100)
        await at_least(http, "waiting", 40)
        (pid,) = actors("::qas").values()
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(4.0)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*burst)
        await ready(http, 2)

    outcomes = asyncio.run(load.during(change))
    assert_each_answered_once(outcomes, least=100)
    assert direct_decisions(base_url) - before >= decided_directly(outcomes) > 0
    assert outcomes[-1].reason != "qas_unavailable", "QAS decides again"


def test_a_killed_replica_costs_only_retries(serve_port: int, base_url: str) -> None:
    deploy(serve_port)
    load = Load(base_url)

    async def change(http: httpx.AsyncClient) -> None:
        await ready(http, 2)
        burst = await load.burst(http, 60)
        await at_least(http, "sent", 4)
        pid = next(iter(actors("SERVE_REPLICA::default#Replica").values()))
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*burst)
        await ready(http, 2)

    outcomes = asyncio.run(load.during(change))
    failed = [o for o in outcomes if o.status != 200]
    assert not failed, failed[:5]
    # Those in the dead engine are admitted by another one, too; nobody is a third time.
    admitted = ray.get(ray.get_actor(LEDGER, namespace="tests").admitted.remote())
    assert len(admitted) == len(outcomes)
    assert max(admitted.values()) <= 2
    assert any(o.attempts > 1 for o in outcomes)


def test_a_killed_ingress_takes_its_own_requests_along_and_no_others(
    serve_port: int, base_url: str
) -> None:
    """Its tickets leave the window; what the other ingress has there is served."""
    deploy(serve_port, {"name": "Ingress", "num_replicas": 2})
    load = Load(base_url, rate_per_s=2.0, words=240)
    seen: dict[str, float] = {}

    async def change(http: httpx.AsyncClient) -> None:
        await ready(http, 2)
        burst = await load.burst(http, 180)
        seen["waiting"] = await at_least(http, "waiting", 120)
        pid = next(iter(actors("SERVE_REPLICA::default#Ingress").values()))
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        normal = asyncio.create_task(asyncio.to_thread(_until_two_ingresses_without, pid))
        await asyncio.gather(*burst)
        seen["normal_after_s"] = await normal - killed_s

    outcomes = asyncio.run(load.during(change))
    lost = [o for o in outcomes if o.status != 200]
    admitted = ray.get(ray.get_actor(LEDGER, namespace="tests").admitted.remote())
    print(
        f"{seen['waiting']} waited; {len(lost)} of {len(outcomes)} lost, {len(admitted)} admitted; "
        f"two ingresses again after {seen['normal_after_s']:.1f} s"
    )
    assert 20 < len(lost) < len(outcomes) - 20, "one of two ingresses had about half of them"
    assert max(admitted.values()) == 1
    answered = len(outcomes) - len(lost)
    assert answered <= len(admitted) <= answered + 2 * 8, "but for those in the engines"
    assert outcomes[-1].status == 200
    with httpx.Client(base_url=base_url, timeout=60.0) as client:
        wait_until(lambda: idle(client), "books did not close")


def _until_two_ingresses_without(pid: int) -> float:
    """When Serve is content again and two ingresses run, neither of them this process."""
    deadline = time.monotonic() + 60.0
    while True:
        pids = set(living(INGRESS).values())
        if len(pids) == 2 and pid not in pids and _runs():
            return time.monotonic()
        assert time.monotonic() < deadline, f"ingresses: {pids}"
        time.sleep(0.1)
