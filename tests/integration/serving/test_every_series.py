"""Everything that metrics can tell, made to happen, and read where Prometheus reads it.

On ``/metrics`` (job ``prism`` of cluster/prometheus) for the dashboard, and on the port of Ray's own
metrics that every node has (job ``ray``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from redis import Redis

from prism_ray.serving.warm_restart import CHECKPOINTS
from prism_ray.telemetry.keys import Keys
from prism_ray.validate.monitoring import targets
from prism_ray.validate.promql import unresolved

from ..telemetry.real_server import RealServer
from .contract_tools import CHAT, COMPLETIONS, busy, chat, error_of, idle, state, wait_until

CLUSTER = Path(__file__).parents[3] / "cluster"

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2, "max_running": 1},
    # A request goes where it is done first, whatever it computes again there.
    "placement": {"policy": "e2", "params": {"spill_ratio": 0.0, "spill_after": 0.0}},
    "scheduler": {"policy": "prism", "params": {"overdue_after_tokens": 0}},
    "engine": {"simulated": {"context_length": 8192, "pool_tokens": 4096}},
}

ON_RAYS_PORT: dict[str, set[str]] = {
    "prism_requests_total": {"lane", "outcome"},
    "prism_queue_wait_seconds_count": {"lane"},
    "prism_round_seconds_count": set(),
    "prism_batch_size_count": set(),
    "prism_decisions_total": {"policy", "reason"},
    "prism_prompt_tokens_total": set(),
    "prism_cached_tokens_total": set(),
    "prism_predicted_cached_tokens_total": set(),
    "prism_ttft_queue_wait_seconds_count": {"lane"},
    "prism_ttft_prefill_seconds_count": {"lane"},
    "prism_ttft_first_token_seconds_count": {"lane"},
    "prism_replica_prefill_tokens_per_s": {"replica"},
    "prism_inter_token_seconds_count": {"lane"},
    "prism_replica_evicted_tokens_total": {"replica", "class"},
    "prism_replica_protected_tokens": {"replica"},
    "prism_starvation_promotions_total": {"policy"},
    "prism_placements_total": {"placement", "kind"},
    "prism_replica_residency": {"replica", "state"},
    "prism_aborts_total": {"reason"},
    "prism_router_waits_total": set(),
    "prism_telemetry_store_up": set(),
}
"""What has to be among Ray's metrics, with its labels."""


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> Iterator[httpx.Client]:
    """An application to which everything has happened."""
    with RealServer() as store:
        Redis.from_url(store.url).set(Keys("default").checkpoint(CHECKPOINTS[0]), b"no checkpoint")
        client = run_app(CONFIG | {"redis": {"url": store.url}})
        wait_until(lambda: len(state(client)["replicas"]) == 2, "a replica did not join", 30.0)
        everything_happens(client)
        yield client


def everything_happens(client: httpx.Client) -> None:
    def asked(number: int, document: str) -> None:
        segments = [{"label": "document", "text": f"{document} " * 60}]
        prism = {"segments": segments, "suffix": f"Question {number}?"}
        body = {"model": "simulated", "max_tokens": 8, "prism": prism}
        assert client.post(COMPLETIONS, json=body).status_code == 200

    with ThreadPoolExecutor(8) as pool:
        # One document for all, so that some leave the replica that has it; then more than a pool holds.
        list(pool.map(lambda number: asked(number, "shared"), range(16)))
        list(pool.map(lambda number: asked(number, f"other {number}"), range(60)))
    with client.stream("POST", CHAT, json=chat(stream=True)) as stream:
        stream.read()
    error_of(client.post(CHAT, json=chat(n=1000)), 400)
    with busy(client, waiting=2):
        late = chat("Too late", prism={"deadline_s": 0.05})
        error_of(client.post(CHAT, json=late), 408)
    wait_until(lambda: idle(client), "books did not close")


def samples(text: str) -> list[Sample]:
    return [s for family in text_string_to_metric_families(text) for s in family.samples]


def of(found: list[Sample], name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """By label; without those that Ray adds, over which it is summed."""
    added: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in found:
        if sample.name == name:
            own = ON_RAYS_PORT[name.removeprefix("ray_")]
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k in own))
            added[labels] = added.get(labels, 0) + sample.value
    return added


def test_the_dashboard_asks_for_what_prometheus_scrapes(client: httpx.Client) -> None:
    config = yaml.safe_load((CLUSTER / "prometheus" / "prometheus.yaml").read_text())
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "prism"]
    live: dict[str, frozenset[str]] = {}
    for sample in samples(client.get(job["metrics_path"]).text):
        live[sample.name] = live.get(sample.name, frozenset()) | frozenset(sample.labels)
    dashboard = json.loads((CLUSTER / "grafana" / "prism.json").read_text())
    problems = {
        f"{target['expr']}: {problem}"
        for _, target in targets(dashboard)
        for problem in unresolved(target["expr"], live)
    }
    assert problems == set()


def test_what_happened_is_told_apart(client: httpx.Client) -> None:
    found = samples(client.get("/metrics").text)
    reasons = dict(of(found, "prism_aborts_total"))
    assert {(("reason", "client_gone"),), (("reason", "deadline"),)} <= reasons.keys()
    kinds = {dict(labels)["kind"] for labels in of(found, "prism_placements_total")}
    assert "spill" in kinds, "a migration"
    evicted: dict[str, float] = {}
    for labels, tokens in of(found, "prism_replica_evicted_tokens_total").items():
        kind = dict(labels)["class"]
        evicted[kind] = evicted.get(kind, 0) + tokens
    assert evicted["private"] > 0
    assert evicted["reusable"] > 0


def test_rays_own_endpoint_has_all_of_it(client: httpx.Client) -> None:
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    replicas = {replica["replica"] for replica in state(client)["replicas"]}
    evicted = "prism_replica_evicted_tokens_total"

    def there() -> bool:
        """The evictions of these replicas: the port has former applications', too."""
        told = of(samples(httpx.get(url).text), f"ray_{evicted}")
        own = {labels: n for labels, n in told.items() if dict(labels)["replica"] in replicas}
        return own == of(samples(client.get("/metrics").text), evicted)

    def lacking() -> set[str]:
        """What is not there yet: every process passes on its own, some seconds after the others."""
        labels: dict[str, set[str]] = {}
        for sample in samples(httpx.get(url).text):
            labels.setdefault(sample.name.removeprefix("ray_"), set()).update(sample.labels)
        return {n for n, own in ON_RAYS_PORT.items() if not own <= labels.get(n, set())}

    wait_until(there, "evictions differ", timeout_s=90.0)
    deadline = time.monotonic() + 60
    while (missing := lacking()) and time.monotonic() < deadline:
        time.sleep(1.0)
    assert missing == set()
    found = samples(httpx.get(url).text)
    kinds = {dict(labels)["kind"] for labels in of(found, "ray_prism_placements_total")}
    assert "spill" in kinds
    assert set(of(found, "ray_prism_router_waits_total").values()) == {0}
