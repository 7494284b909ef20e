"""Runs in the head's network namespace: an application over two nodes, one of which leaves and returns.

    python -m tests.integration.serving.failures.node_driver HEAD NODE OUT HOW...

HEAD and NODE are the namespaces. For each HOW in turn: ``cut`` (nothing passes between the nodes for a
few seconds), ``killed`` (all processes of the node end, and it joins again) or ``lost`` (nothing passes
until Ray has given the node up; it joins again). What came of each is written to OUT.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve

from prism_ray.application import assemble
from prism_ray.config import PrismConfig
from tests.faults.application import Application
from tests.faults.load import Load, redone, seen
from tests.faults.nodes import GCS_PORT, HEAD_ADDRESS, NODE_ADDRESS, Nodes
from tests.faults.processes import INGRESS, QAS, REPLICA, addresses, living
from tests.faults.replicas import SIMULATED, FaultyReplica

CUT_S = 4.0
"""Longer than a replica may be silent, shorter than anybody takes to give a node up."""

CONFIG: dict[str, Any] = SIMULATED | {
    "replicas": {"count": 2, "num_cpus": 0.6, "max_running": 8},
    "ingress": {"count": 1, "num_cpus": 0.2},
    "scheduler": {"resources": {"prism_qas": 0.001}},
}
"""One replica a node; the ingress starts when there is only the head, and QAS belongs there."""


def main(nodes: Nodes, out: Path, ways: list[str]) -> None:
    ray.init(address=f"{HEAD_ADDRESS}:{GCS_PORT}", logging_level="warning", namespace="tests")
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": 8000})
    application = assemble(PrismConfig.load(CONFIG), replica_class=FaultyReplica)
    deploying = threading.Thread(target=lambda: serve.run(application, name="default"))
    deploying.start()
    _wait_for(lambda: len(living(REPLICA)) == len(living(INGRESS)) == len(living(QAS)) == 1)
    nodes.start_node()
    deploying.join()
    app = Application("http://127.0.0.1:8000", replicas=2, ingresses=1)
    results = {how: asyncio.run(leave_and_return(app, nodes, how)) for how in ways}
    out.write_text(json.dumps(results))


async def leave_and_return(app: Application, nodes: Nodes, how: str) -> dict[str, Any]:
    """The node leaves under load and comes back; what clients saw, and when all was normal."""
    async with app.client() as http:
        await app.until_normal(http)
        assert await asyncio.to_thread(addresses, REPLICA) == {HEAD_ADDRESS, NODE_ADDRESS}
        async with Load(app.base_url) as load:
            await load.burst(40)
            await asyncio.sleep(1.5)
            left_s = load.now_s
            given_up_after_s = await _leave(app, http, nodes, how)
            back_s = load.now_s
            normal_after_s = await app.until_normal(http)
        await app.until_books_close(http)
    return {
        "sent": load.sent,
        "seen": seen(load.rows),
        "redone": redone(load.rows),
        "longest_s": max(row.latency_s or 0.0 for row in load.rows),
        "given_up_after_s": given_up_after_s,
        "away_s": back_s - left_s,
        "normal_after_s": normal_after_s,
    }


async def _leave(app: Application, http: httpx.AsyncClient, nodes: Nodes, how: str) -> float:
    """Until the node is back; how long it took until QAS decided nothing more for its replica."""
    start_s = time.monotonic()
    await asyncio.to_thread(nodes.kill_node if how == "killed" else nodes.cut_cable)
    given_up_after_s = await _until_given_up(app, http)
    if how == "cut":
        await asyncio.sleep(max(0.0, CUT_S - (time.monotonic() - start_s)))
        await asyncio.to_thread(nodes.mend_cable)
        return given_up_after_s
    while len(await asyncio.to_thread(living, REPLICA)) > 1:  # noqa: ASYNC110 - Ray's own table
        await asyncio.sleep(0.2)
    await asyncio.sleep(2.0)  # the other one serves alone
    if how == "lost":
        await asyncio.to_thread(nodes.kill_node)
        await asyncio.to_thread(nodes.mend_cable)
    await asyncio.to_thread(nodes.start_node)
    return given_up_after_s


async def _until_given_up(app: Application, http: httpx.AsyncClient) -> float:
    start_s = time.monotonic()
    async with asyncio.timeout(60.0):
        while True:
            state = await app.state(http)
            if state and sum(not r["draining"] for r in state["replicas"]) == 1:
                return time.monotonic() - start_s
            await asyncio.sleep(0.1)


def _wait_for(condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the application did not start on the head"
        time.sleep(0.2)


if __name__ == "__main__":
    main(Nodes(*sys.argv[1:3]), Path(sys.argv[3]), sys.argv[4:])
