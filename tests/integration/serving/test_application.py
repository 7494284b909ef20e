"""The whole application over HTTP with the simulated engine: API, headers, reports, refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2},
    "placement": {"policy": "round-robin"},
    "engine": {"simulated": {"context_length": 4096, "pool_tokens": 8192}},
    # On a machine that others keep busy: no stream opens before its decision, nobody decides directly.
    "limits": {"qas_timeout_s": 30.0, "keepalive_after_s": 60.0},
}

PASSAGES = {
    name: f"{name} is a city. " + f"The {name} river is long and its bridges are many. " * 6
    for name in ("Arles", "Basel", "Celle", "Delft")
}


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    return run_app(CONFIG)


def rag_body(question: str, names: list[str], **more: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": PASSAGES[n], "prism": {"segment": n, "reorderable": True}}
        for n in names
    ]
    parts.append({"type": "text", "text": question})
    return {
        "model": "simulated",
        "messages": [
            {"role": "system", "content": "Answer from the passages."},
            {"role": "user", "content": parts},
        ],
        "max_tokens": 4,
        **more,
    }


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class TestAnswers:
    def test_a_chat_is_answered_with_usage_and_headers(self, client: httpx.Client) -> None:
        response = client.post("/v1/chat/completions", json=rag_body("Where?", ["Arles"]))
        assert response.status_code == 200, response.text
        body = response.json()
        assert body["object"] == "chat.completion"
        assert body["choices"][0]["message"]["content"]
        assert body["usage"]["completion_tokens"] == 4
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
        assert response.headers["x-prism-lane"] in {"hot", "cold"}
        assert response.headers["x-prism-replica"]
        assert float(response.headers["x-prism-queue-ms"]) >= 0

    def test_a_stream_ends_with_usage_report_and_done(self, client: httpx.Client) -> None:
        body = rag_body(
            "Where?",
            ["Arles", "Basel"],
            stream=True,
            stream_options={"include_usage": True},
            prism={"report": True},
        )
        chunks = events(client.post("/v1/chat/completions", json=body))
        assert chunks[-1] == "[DONE]"
        text = "".join(
            choice["delta"].get("content") or "" for c in chunks[:-1] for choice in c["choices"]
        )
        assert text
        usage, last = chunks[-3:-1]
        assert usage["usage"]["completion_tokens"] == 4
        assert last["choices"] == []
        assert sorted(last["prism"]["order"]) == ["Arles", "Basel"]
        ttft = last["prism"]["ttft"]
        terms = ttft["queue_wait_s"] + ttft["prefill_s"] + ttft["first_token_s"]
        assert terms == pytest.approx(ttft["total_s"])
        assert all(ttft[k] >= 0 for k in ("queue_wait_s", "prefill_s", "first_token_s"))
        assert not any("prism" in c for c in chunks[:-2])

    def test_the_ttft_of_a_whole_answer_is_not_its_latency(self, client: httpx.Client) -> None:
        body = rag_body("Long?", ["Arles"], prism={"report": True}) | {"max_tokens": 300}
        response = client.post("/v1/chat/completions", json=body)
        ttft = response.json()["prism"]["ttft"]
        terms = ttft["queue_wait_s"] + ttft["prefill_s"] + ttft["first_token_s"]
        assert terms == pytest.approx(ttft["total_s"])
        assert ttft["total_s"] < 0.5 * response.elapsed.total_seconds()

    def test_a_stream_and_its_whole_answer_say_the_same(self, client: httpx.Client) -> None:
        body = rag_body("Same?", ["Celle"])
        whole = client.post("/v1/chat/completions", json=body).json()
        chunks = events(client.post("/v1/chat/completions", json=body | {"stream": True}))
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1])
        assert text == whole["choices"][0]["message"]["content"]

    def test_completions_take_listed_segments(self, client: httpx.Client) -> None:
        body = {
            "model": "simulated",
            "max_tokens": 3,
            "prism": {
                "report": True,
                "system": "Answer.",
                "segments": [
                    {"label": n, "text": PASSAGES[n], "reorderable": True} for n in PASSAGES
                ],
                "suffix": "Where?",
            },
        }
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["object"] == "text_completion"
        assert sorted(response.json()["prism"]["order"]) == sorted(PASSAGES)

    def test_the_openai_client_works(self, client: httpx.Client) -> None:
        openai = OpenAI(base_url=f"{client.base_url}/v1", api_key="none")
        answer = openai.chat.completions.create(
            model="simulated", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
        assert [m.id for m in openai.models.list()] == ["simulated"]

    def test_a_hot_question_asked_again_finds_its_passages_cached(
        self, client: httpx.Client
    ) -> None:
        body = rag_body("Again?", ["Delft", "Basel", "Celle"], prism={"report": True})
        replies = [client.post("/v1/chat/completions", json=body).json() for _ in range(3)]
        # Two replicas take turns: by the third, one has seen it.
        last = replies[-1]
        cached = last["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0.8 * last["usage"]["prompt_tokens"]
        assert last["prism"]["cached_tokens"] == cached
        assert last["prism"]["cached_tokens_predicted"] > 0.8 * last["usage"]["prompt_tokens"]

    def test_both_replicas_work_and_all_books_close(self, client: httpx.Client) -> None:
        names = list(PASSAGES)

        def ask(number: int) -> httpx.Response:
            body = rag_body(f"Q{number}?", names[number % 3 : number % 3 + 2], stream=True)
            return client.post("/v1/chat/completions", json=body)

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(64)))
        assert {a.status_code for a in answers} == {200}
        assert all(events(a)[-1] == "[DONE]" for a in answers)
        assert len({a.headers["x-prism-replica"] for a in answers}) == 2

        def closed() -> bool:
            state = client.get("/prism/state").json()
            owed = [r["sent"] + r["not_prefilled"] + r["foreign"] for r in state["replicas"]]
            return state["waiting"] == state["sent"] == sum(owed) == 0

        wait_until(closed, "books did not close")


class TestState:
    def test_health_ready_and_models(self, client: httpx.Client) -> None:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json() == {"status": "ready", "replicas": 2}
        assert client.get("/v1/models").json()["data"][0]["id"] == "simulated"

    def test_the_state_shows_window_replicas_and_telemetry(self, client: httpx.Client) -> None:
        wait_until(lambda: client.get("/prism/state").json()["telemetry"]["store_up"], "no store")
        state = client.get("/prism/state").json()
        assert state["policy"] == "prism"
        assert {r["pool_tokens"] for r in state["replicas"]} == {8192}
        assert state["telemetry"]["decisions_total"] > 0

    def test_an_unknown_path_answers_in_the_openai_body(self, client: httpx.Client) -> None:
        response = client.get("/v1/nothing")
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "invalid_request_error"


CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}

REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("messages missing", {"model": "simulated"}, "messages"),
    ("messages empty", CHAT | {"messages": []}, "messages"),
    ("messages of a wrong type", CHAT | {"messages": "Hi"}, "messages"),
    ("a message that is no object", CHAT | {"messages": ["Hi"]}, "messages[0]"),
    ("a role that does not exist", CHAT | {"messages": [{"role": "x", "content": "y"}]}, "role"),
    ("temperature out of range", CHAT | {"temperature": 3}, "temperature"),
    ("temperature of a wrong type", CHAT | {"temperature": "hot"}, "temperature"),
    ("top_p out of range", CHAT | {"top_p": 0}, "top_p"),
    ("max_tokens of zero", CHAT | {"max_tokens": 0}, "max_tokens"),
    ("max_tokens beyond the limit", CHAT | {"max_tokens": 10**6}, "max_tokens"),
    ("n beyond the limit", CHAT | {"n": 1000}, "n"),
    ("stream of a wrong type", CHAT | {"stream": "yes"}, "stream"),
    ("an unknown prism field", CHAT | {"prism": {"colour": 1}}, "prism.colour"),
    ("a prism field of a wrong type", CHAT | {"prism": {"report": "yes"}}, "prism.report"),
    (
        "a label of a wrong type",
        CHAT
        | {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "t", "prism": {"segment": 3}}],
                }
            ]
        },
        "messages[0].content[0].prism",
    ),
]


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "path"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
    )
    def test_a_malformed_body_is_a_400_that_names_the_path(
        self, client: httpx.Client, body: dict[str, Any], path: str
    ) -> None:
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert path in error["message"]

    def test_what_is_no_json_is_a_400(self, client: httpx.Client) -> None:
        for content in (b"{", b"", b"[1]", b"\xff\xfe"):
            response = client.post("/v1/chat/completions", content=content)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["type"] == "invalid_request_error"

    def test_a_prompt_that_never_fits_is_refused_at_the_door(self, client: httpx.Client) -> None:
        body = CHAT | {"messages": [{"role": "user", "content": "word " * 9000}]}
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert "maximum context length is 4096 tokens" in response.json()["error"]["message"]

    def test_an_unknown_model_is_a_404(self, client: httpx.Client) -> None:
        response = client.post("/v1/chat/completions", json=CHAT | {"model": "gpt-9"})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"

    def test_refusals_leave_nothing_behind(self, client: httpx.Client) -> None:
        state = client.get("/prism/state").json()
        assert state["waiting"] == state["sent"] == 0


class TestClientsThatLeave:
    def test_a_client_that_leaves_mid_stream_frees_its_slot(self, client: httpx.Client) -> None:
        body = rag_body("Long?", ["Arles"], stream=True) | {"max_tokens": 500}
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            lines = response.iter_lines()  # kept: collecting it would close the connection
            next(lines)
            assert client.get("/prism/state").json()["sent"] == 1
        wait_until(
            lambda: client.get("/prism/state").json()["sent"] == 0, "the slot did not return", 3.0
        )
