"""Why requests went where they went, asked of a live application, before and after its QAS is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ..telemetry.real_server import RealServer
from .contract_tools import CHAT, state, wait_until
from .update_load import actors

pytestmark = pytest.mark.serve

DOCUMENT = " ".join(f"word{n % 97}" for n in range(400))
OTHER = " ".join(f"thing{n % 89}" for n in range(400))
BALANCING = ("rebalance", "replicate", "spill", "decode_balance")


@pytest.fixture(scope="module")
def application(run_app: Callable[..., httpx.Client]) -> Iterator[httpx.Client]:
    with RealServer() as store:
        yield run_app(
            {
                "extends": "simulated",
                "replicas": {"count": 2, "num_cpus": 0.5},
                "ingress": {"num_cpus": 0.1},
                # A handful of requests says nothing about balance.
                "placement": {"policy": "e2", "params": dict.fromkeys(BALANCING, False)},
                "engine": {"simulated": {"cost": "step-25ms"}},
                "redis": {"url": store.url},
            }
        )


def ask(client: httpx.Client, document: str, question: str) -> tuple[str, str]:
    """One question about a document; the answer's id and its replica."""
    parts = [
        {"type": "text", "text": document, "prism": {"segment": "document"}},
        {"type": "text", "text": question},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"], answer.headers["x-prism-replica"]


def explain(client: httpx.Client, request: str) -> dict[str, str]:
    """What ``prism-ray explain`` prints, by its first word or two."""
    done = explained(client, request)
    assert done.returncode == 0, done.stderr
    return dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in done.stdout.splitlines())


def explained(client: httpx.Client, request: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: into this one's output Ray writes what its workers log."""
    command = [sys.executable, "-c", "from prism_ray.cli import main; main()", "explain", request]
    return subprocess.run(
        [*command, "--url", str(client.base_url)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def metric(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_explain_says_what_e2_compared(application: httpx.Client) -> None:
    first, home = ask(application, DOCUMENT, "What?")
    second, again = ask(application, DOCUMENT, "And why?")
    other, elsewhere = ask(application, OTHER, "What?")
    assert home == again != elsewhere
    told = {request: explain(application, request) for request in (first, second, other)}
    assert [told[r]["why there"] for r in (first, second, other)] == [
        "explore",
        "exploit",
        "explore",
    ]
    assert told[first]["replica"].startswith(f"{home}, plan ")
    assert int(told[second]["cached_tokens"]) > 400
    assert int(told[second]["missed_tokens"]) < 40
    assert float(told[second]["load_s"]) > 0
    assert told[second]["holders"] == "1"
    assert told[second]["cached"].split()[0] == told[second]["cached_tokens"]
    unknown = explained(application, "chatcmpl-0")
    assert unknown.returncode == 1
    assert "No decision" in unknown.stderr


def test_after_its_qas_is_killed_the_next_one_knows_who_has_what(
    application: httpx.Client,
) -> None:
    homes = {text: ask(application, text, "First?")[1] for text in (DOCUMENT, OTHER)}
    assert len(set(homes.values())) == 2
    time.sleep(12.0)  # within which a checkpoint is made
    before = state(application)
    (pid,) = actors("::qas").values()
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        answer = application.get("/prism/state")
        if answer.status_code != 200 or answer.json()["epoch"] == before["epoch"]:
            return False
        return len(answer.json()["replicas"]) == 2

    wait_until(back, "no new QAS with both replicas", timeout_s=30.0)
    wait_until(
        lambda: metric(application, "prism_replicas_restored_total") == 2,
        "the new QAS took nothing over",
    )
    held = {r["replica"]: r["resident_tokens"] for r in before["replicas"]}
    now: dict[str, Any] = {r["replica"]: r for r in state(application)["replicas"]}
    assert {name: r["resident_tokens"] for name, r in now.items()} == held
    assert metric(application, "prism_checkpoints_ignored_total") == 0
    for text, home in homes.items():
        request, replica = ask(application, text, "Again?")
        told = explain(application, request)
        assert (replica, told["why there"]) == (home, "exploit")
        assert int(told["cached_tokens"]) > 400
        assert float(told["load_s"]) > 0, "what ran under the former QAS still counts as load"
