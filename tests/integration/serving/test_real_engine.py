"""The default application without a GPU: SmolLM2 on the real SGLang engine, asked as the README asks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI

from loadgen.bench.handles import replica_handle

from .walking import WalkingReplica, believed

pytestmark = [pytest.mark.serve, pytest.mark.real_engine]

PASSAGES = {
    "seine": "The Seine flows through Paris. " * 12,
    "paris": "Paris is the capital of France. " * 12,
    "rhine": "The Rhine flows through Cologne. " * 12,
}


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client], smollm2: Any) -> httpx.Client:
    return run_app("cpu-smollm2", replica_class=WalkingReplica)


def ask(client: httpx.Client, names: list[str], question: str, **more: Any) -> Any:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": PASSAGES[n], "prism": {"segment": n, "reorderable": True}}
        for n in names
    ]
    body = {
        "model": "SmolLM2-135M-Instruct",
        "messages": [
            {"role": "system", "content": "Answer from the passages."},
            {"role": "user", "content": [*parts, {"type": "text", "text": question}]},
        ],
        "max_tokens": 12,
        "temperature": 0,
        "prism": {"report": True},
    }
    response = client.post("/v1/chat/completions", json=body | more)
    assert response.status_code == 200, response.text
    return response.json()


def assert_residency_is_the_tree(client: httpx.Client, least_tokens: int) -> None:
    """Once all news has come, with the number of tokens that ``/prism/state`` shows."""
    deadline = time.monotonic() + 10
    while True:
        walked = replica_handle().walk.remote().result()
        views = list(believed().values())
        if views == [("exact", walked)]:
            break
        assert time.monotonic() < deadline, (views, walked)
        time.sleep(0.1)
    (replica,) = client.get("/prism/state").json()["replicas"]
    assert replica["residency"] == "exact"
    resident = sum(end - start for start, end in walked.values())
    assert replica["resident_tokens"] == resident >= least_tokens


class TestRealEngine:
    def test_the_openai_client_gets_an_answer(self, client: httpx.Client) -> None:
        openai = OpenAI(base_url=f"{client.base_url}/v1", api_key="none")
        answer = openai.chat.completions.create(
            model="SmolLM2-135M-Instruct",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=12,
            temperature=0,
        )
        assert "Paris" in (answer.choices[0].message.content or "")

    def test_a_hot_question_finds_its_passages_cached(self, client: httpx.Client) -> None:
        first = ask(client, ["paris", "seine"], "What is the capital of France?")
        again = ask(client, ["seine", "paris"], "Which river flows through Paris?")
        usage = again["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        # Both passages, whatever order the client wrote them in.
        assert cached > 0.7 * usage["prompt_tokens"]
        assert again["prism"]["order"] == first["prism"]["order"]
        assert abs(again["prism"]["cached_tokens_predicted"] - cached) <= 4

    def test_prefix_reuse_shows_in_the_prefill_term(self, client: httpx.Client) -> None:
        fresh = [f"The {time.time_ns()} valley has {n} lakes and many paths. " * 12 for n in "abc"]
        PASSAGES.update({f"fresh{i}": text for i, text in enumerate(fresh)})
        names = [f"fresh{i}" for i in range(3)]
        cold = ask(client, names, "How many lakes?")["prism"]["ttft"]
        warm = ask(client, names, "How many paths?")["prism"]["ttft"]
        assert warm["prefill_s"] < 0.6 * cold["prefill_s"]

    def test_sampling_errors_of_the_engine_are_typed_400s(self, client: httpx.Client) -> None:
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 4,
            "response_format": {"type": "json_schema"},
        }
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["message"]

    def test_books_close_and_the_engine_holds_nothing(self, client: httpx.Client) -> None:
        deadline = time.monotonic() + 10
        while True:
            state = client.get("/prism/state").json()
            replica = state["replicas"][0]
            if not (state["sent"] or replica["running"] or replica["engine_waiting"]):
                break
            assert time.monotonic() < deadline, state
            time.sleep(0.2)

    def test_what_qas_believes_resident_is_what_a_walk_of_the_tree_finds(
        self, client: httpx.Client
    ) -> None:
        for names in itertools.permutations(["seine", "paris", "rhine"], 2):
            ask(client, list(names), "What do they have in common?")
        assert_residency_is_the_tree(client, least_tokens=500)
        deadline = time.monotonic() + 30
        while (
            flushed := client.post("/flush_cache")
        ).status_code == 409:  # somebody is not idle yet
            assert time.monotonic() < deadline, flushed.text
            time.sleep(0.5)
        assert flushed.status_code == 200, flushed.text
        ask(client, ["rhine"], "Which river flows through Cologne?")
        assert_residency_is_the_tree(client, least_tokens=50)

    def test_the_engine_dies_with_its_replica(self, client: httpx.Client) -> None:
        replica = next(
            p for p in psutil.process_iter() if p.name().startswith("ray::ServeReplica:default:R")
        )
        engine = replica.children(recursive=True)
        assert any("sglang" in p.name() or "sglang_host" in " ".join(p.cmdline()) for p in engine)
        replica.kill()
        _, alive = psutil.wait_procs(engine, timeout=60)
        assert alive == []
