"""/metrics, /flush_cache and the published schema of a running application."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .contract_tools import (
    CHAT,
    COMPLETIONS,
    Samples,
    busy,
    chat,
    error_of,
    idle,
    state,
    wait_until,
)

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2, "max_running": 1},
    "placement": {"policy": "least-loaded"},
    "engine": {"simulated": {"context_length": 8192, "pool_tokens": 8192}},
}


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    client = run_app(CONFIG)
    wait_until(lambda: len(state(client)["replicas"]) == 2, "a replica did not join", 30.0)
    return client


def segment(text: str) -> dict[str, Any]:
    """A completion of one marked segment: what is predicted to be cached are segments."""
    segments = [{"label": "text", "text": text}]
    prism = {"segments": segments, "suffix": "And then?", "report": True}
    return {"model": "simulated", "max_tokens": 2, "prism": prism}


class TestMetrics:
    def test_what_was_served_is_counted(self, client: httpx.Client) -> None:
        before = Samples(client)
        body = segment("A text that is asked three times. " * 20)
        usages = [client.post(COMPLETIONS, json=body).json()["usage"] for _ in range(3)]
        stream = client.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}))
        chunks = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
        usages.append(json.loads(chunks[-1])["usage"])
        client.post(CHAT, json=chat(n=1000))
        client.post(CHAT, json=chat(model="other"))
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        wait_until(lambda: idle(client), "books did not close")
        after = Samples(client)

        def grown(name: str, **labels: str) -> float:
            return after.of(name, **labels) - before.of(name, **labels)

        assert grown("prism_requests_total", outcome="ok") == 4
        assert grown("prism_requests_total", lane="none", outcome="400") == 1
        assert grown("prism_requests_total", lane="none", outcome="404") == 1
        assert grown("prism_decisions_total", policy="prism") == 4
        assert grown("prism_prompt_tokens_total") == sum(u["prompt_tokens"] for u in usages)
        assert grown("prism_cached_tokens_total") == cached > 0
        assert grown("prism_predicted_cached_tokens_total") > 0
        assert grown("prism_output_tokens_total") == 8
        for name in ("queue_wait", "ttft", "ttft_queue_wait", "ttft_prefill", "ttft_first_token"):
            assert grown(f"prism_{name}_seconds_count") == 4
            assert grown(f"prism_{name}_seconds_bucket", le="+Inf") == 4
        assert grown("prism_inter_token_seconds_count") == 1, "of the stream"
        assert grown("prism_router_waits_total") == 0
        assert grown("prism_round_seconds_count") >= 4
        assert grown("prism_batch_size_sum") == 4
        assert after.of("prism_replica_residency", state="exact") == 2
        assert after.has("prism_replica_evicted_tokens_total", "prism_replica_retractions_total")
        assert after.of("prism_waiting_requests") == 0
        assert after.of("prism_replica_pool_tokens") == 2 * 8192

    def test_who_left_is_counted_as_aborted(self, client: httpx.Client) -> None:
        before = Samples(client)
        with busy(client):
            pass
        wait_until(
            lambda: (
                Samples(client).of("prism_aborts_total", reason="client_gone")
                == before.of("prism_aborts_total", reason="client_gone") + 1
            ),
            "the abort was not counted",
        )

    def test_what_is_known_of_the_caches_is_exact(self, client: httpx.Client) -> None:
        wait_until(
            lambda: Samples(client).of("prism_replica_residency", state="exact") == 2,
            f"not exact: {[r['residency'] for r in state(client)['replicas']]}",
        )

    def test_the_store_is_up(self, client: httpx.Client) -> None:
        wait_until(lambda: Samples(client).of("prism_telemetry_store_up") == 1, "no store")


class TestLivePage:
    def test_it_shows_what_was_served(self, client: httpx.Client) -> None:
        label = "<script>alert(1)</script>"
        prism = {"segments": [{"label": label, "text": "A text to see. " * 40}], "suffix": "?"}
        body = {"model": "simulated", "max_tokens": 2, "prism": prism}
        for _ in range(3):
            assert client.post(COMPLETIONS, json=body).status_code == 200
        answer = client.get("/prism/")
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        now = state(client)
        for replica in now["replicas"]:
            assert replica["replica"] in answer.text
        for decision in now["decisions"]:
            assert decision["request_id"][:12] in answer.text
        assert "&lt;script&gt;alert(1)" in answer.text
        assert answer.text.count("<script") == 1

    def test_the_waits_of_the_last_minutes_are_told(self, client: httpx.Client) -> None:
        def answers() -> int:
            return int(state(client)["recent"]["all"]["ttft"]["count"])

        before = answers()
        assert client.post(CHAT, json=chat()).status_code == 200
        wait_until(lambda: answers() > before, "its TTFT was not told")

    def test_a_parameter_that_is_no_number_is_refused(self, client: httpx.Client) -> None:
        error_of(client.get("/prism/", params={"top": "many"}), 400)


class TestFlush:
    def test_nothing_is_cached_nor_predicted_afterwards(self, client: httpx.Client) -> None:
        body = segment("What will be flushed. " * 40)

        def asked() -> tuple[str, int, int]:
            response = client.post(COMPLETIONS, json=body)
            report = response.json()["prism"]
            replica = response.headers["x-prism-replica"]
            return replica, report["cached_tokens"], report["cached_tokens_predicted"]

        def first_of_each() -> dict[str, tuple[int, int]]:
            """(cached, predicted) of the first answer of each replica."""
            seen: dict[str, tuple[int, int]] = {}
            for _ in range(60):
                replica, *tokens = asked()
                seen.setdefault(replica, (tokens[0], tokens[1]))
                if len(seen) == 2:
                    return seen
            raise AssertionError(f"one replica got nothing: {state(client)}")

        first_of_each()
        assert all(min(tokens) > 100 for tokens in first_of_each().values())
        wait_until(lambda: idle(client), "books did not close")
        answer = client.post("/flush_cache")
        assert answer.status_code == 200, answer.text
        assert list(answer.json()["flushed"].values()) == [True, True]
        assert set(first_of_each().values()) == {(0, 0)}
        assert all(min(tokens) > 100 for tokens in first_of_each().values())


class TestSchema:
    def test_every_route_is_described_and_nothing_else(self, client: httpx.Client) -> None:
        from prism_ray.serving.ingress import api

        described = client.get("/openapi.json").json()["paths"]
        served = {
            (p, method) for p, methods in api.openapi()["paths"].items() for method in methods
        }
        assert served == {(p, method) for p, methods in described.items() for method in methods}

    def test_a_working_engine_is_not_flushed(self, client: httpx.Client) -> None:
        with busy(client):
            response = client.post("/flush_cache")
            assert error_of(response, 409)["code"] == "busy"
