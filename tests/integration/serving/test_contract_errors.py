"""The error table over HTTP: what is refused, with which status, code, path and headers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from prism_ray.serving.body_fields import REFUSED

from .contract_tools import (
    CHAT,
    COMPLETIONS,
    busy,
    chat,
    completion,
    error_of,
    events,
    idle,
    state,
    wait_until,
)

pytestmark = pytest.mark.serve

LIMITS = {
    "queue_requests": 2,
    "queue_tokens": 3000,
    "queue_bytes": 80_000,
    "body_bytes": 65_536,
    "max_tokens": 4000,
    "default_max_tokens": 16,
    "n": 3,
    "json_depth": 12,
    "qas_timeout_s": 0.5,
    "keepalive_after_s": 0.8,
}

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 1, "max_running": 1},
    "engine": {"simulated": {"context_length": 8192, "pool_tokens": 8192}},
    "segments": {"count_max": 4, "bytes_max": 2048, "label_max_chars": 20},
    "limits": LIMITS,
}


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    return run_app(CONFIG)


@pytest.fixture(autouse=True)
def _books_close(client: httpx.Client) -> Iterator[None]:
    yield
    wait_until(lambda: idle(client), "a request was left behind")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def segments(count: int, label: str = "label", text: str = "text") -> dict[str, Any]:
    parts = [{"type": "text", "text": text, "prism": {"segment": label}} for _ in range(count)]
    return chat() | {"messages": [{"role": "user", "content": parts}]}


def listed(count: int, label: str = "label", text: str = "text") -> dict[str, Any]:
    body = completion()
    del body["prompt"]
    return body | {"prism": {"segments": [{"label": label, "text": text}] * count}}


OVER_LIMIT: list[tuple[str, str, dict[str, Any], str]] = [
    ("segment count", CHAT, segments(5), "messages"),
    ("segment count, listed", COMPLETIONS, listed(5), "prism.segments"),
    ("segment bytes", CHAT, segments(1, text="é" * 1025), "messages[0].content[0].text"),
    ("segment bytes, listed", COMPLETIONS, listed(1, text="x" * 2049), "prism.segments[0].text"),
    ("label", CHAT, segments(1, label="x" * 21), "messages[0].content[0].prism.segment"),
    ("label, listed", COMPLETIONS, listed(1, label="x" * 21), "prism.segments[0].label"),
    ("n", CHAT, chat(n=4), "n"),
    ("max_tokens", COMPLETIONS, completion(max_tokens=4001), "max_tokens"),
    ("max_completion_tokens", CHAT, chat(max_completion_tokens=4001), "max_tokens"),
    ("stop sequences", CHAT, chat(stop=["a"] * 17), "stop"),
]

AT_LIMIT: list[tuple[str, str, dict[str, Any]]] = [
    ("segment count", CHAT, segments(4)),
    ("segment count, listed", COMPLETIONS, listed(4)),
    ("segment bytes", CHAT, segments(1, text="é" * 1024)),
    ("label", CHAT, segments(1, label="x" * 20)),
    ("n", CHAT, chat(n=3)),
    ("depth", CHAT, chat(metadata=nested(11))),
]


class TestLimits:
    @pytest.mark.parametrize(
        ("path", "body", "param"), [r[1:] for r in OVER_LIMIT], ids=[r[0] for r in OVER_LIMIT]
    )
    def test_beyond_a_limit_is_a_400_that_names_it(
        self, client: httpx.Client, path: str, body: dict[str, Any], param: str
    ) -> None:
        error = error_of(client.post(path, json=body), 400)
        assert error["param"] == param
        assert param in error["message"]

    @pytest.mark.parametrize(
        ("path", "body"), [r[1:] for r in AT_LIMIT], ids=[r[0] for r in AT_LIMIT]
    )
    def test_what_is_at_a_limit_is_served(
        self, client: httpx.Client, path: str, body: dict[str, Any]
    ) -> None:
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text

    def test_too_deep_a_body_is_a_400(self, client: httpx.Client) -> None:
        for levels in (12, 5000):
            raw = json.dumps(chat()).replace("{", '{"x": ' + "[" * levels + "]" * levels + ",", 1)
            error = error_of(client.post(CHAT, content=raw), 400)
            assert "deeper than 12 levels" in error["message"]

    def test_too_large_a_body_is_a_413(self, client: httpx.Client) -> None:
        body = json.dumps(chat("x" * LIMITS["body_bytes"])).encode()

        def in_chunks() -> Iterator[bytes]:
            yield from (body[at : at + 1000] for at in range(0, len(body), 1000))

        for content in (body, in_chunks()):
            error = error_of(client.post(CHAT, content=content), 413)
            assert error["code"] == "body_too_large"
            assert str(LIMITS["body_bytes"]) in error["message"]

    def test_a_prompt_that_never_fits_is_never_queued(self, client: httpx.Client) -> None:
        with busy(client, waiting=2):  # the queue is full: whatever is queued gets a 429
            for path, body in (
                (CHAT, chat("word " * 9000)),
                (COMPLETIONS, completion("a " * 9000)),
            ):
                error = error_of(client.post(path, json=body), 400)
                assert error["code"] == "context_length_exceeded"

    def test_a_malformed_number_or_text_is_a_400(self, client: httpx.Client) -> None:
        for content in (
            b'{"temperature": NaN}',
            b'{"temperature": 1e999}',
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
            b"\xff",
            b"{" * 100_000,
        ):
            error_of(client.post(CHAT, content=content[:60_000]), 400)


class TestEngineFields:
    @pytest.mark.parametrize(
        "name", [*sorted(REFUSED), "bootstrap_host", "bootstrap_port", "bootstrap_room"]
    )
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    def test_an_engine_internal_is_refused_by_its_path(
        self, client: httpx.Client, path: str, name: str
    ) -> None:
        body = (chat if path == CHAT else completion)(**{name: 1})
        error = error_of(client.post(path, json=body), 400)
        assert error["param"] == name
        assert name in error["message"]

    def test_an_unknown_field_is_accepted(self, client: httpx.Client) -> None:
        body = chat(metadata={"a": 1}, store=True, service_tier="auto", nonsense=[1])
        assert client.post(CHAT, json=body).status_code == 200

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    def test_an_unknown_prism_field_is_refused(self, client: httpx.Client, path: str) -> None:
        body = (chat if path == CHAT else completion)(prism={"priority": 1})
        assert error_of(client.post(path, json=body), 400)["param"] == "prism.priority"

    def test_a_cache_salt_parts_the_cache(self, client: httpx.Client) -> None:
        def cached(**more: Any) -> int:
            body = completion("The same long prompt again and again. " * 20, **more)
            answer = client.post(COMPLETIONS, json=body).json()
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert cached() == 0
        assert cached() > 100
        assert cached(cache_salt="mine") == 0
        assert cached(cache_salt="mine") > 100
        assert cached(cache_salt="yours") == 0

    def test_a_cache_salt_that_is_no_text_is_refused(self, client: httpx.Client) -> None:
        error = error_of(client.post(CHAT, json=chat(cache_salt=1)), 400)
        assert error["param"] == "cache_salt"


class TestAFullQueue:
    def test_more_requests_than_may_wait_are_a_429(self, client: httpx.Client) -> None:
        with busy(client, waiting=2):
            response = client.post(CHAT, json=chat())
            assert error_of(response, 429)["code"] == "queue_full"
            assert int(response.headers["retry-after"]) >= 1
            assert float(response.headers["retry-after-ms"]) > 0
            assert state(client)["waiting"] == 2

    def test_more_tokens_than_may_wait_are_a_429(self, client: httpx.Client) -> None:
        with busy(client, waiting=1):
            response = client.post(COMPLETIONS, json=completion("a " * 2990))
            assert error_of(response, 429)["code"] == "queue_full"
            assert int(response.headers["retry-after"]) >= 1
            assert state(client)["waiting"] == 1

    def test_more_bytes_than_may_be_held_are_a_429(self, client: httpx.Client) -> None:
        async def overfill() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=client.base_url, timeout=60) as own:
                # Few tokens in many bytes, and no answer before the deadline.
                body = chat(user="x" * 45_000, prism={"deadline_s": 1.5})
                return list(await asyncio.gather(*(own.post(CHAT, json=body) for _ in range(2))))

        with busy(client):
            answers = sorted(asyncio.run(overfill()), key=lambda a: a.status_code)
            error_of(answers[0], 408)
            assert error_of(answers[1], 429)["code"] == "queue_full"
            assert int(answers[1].headers["retry-after"]) >= 1


class TestDeadlines:
    def test_a_passed_deadline_is_a_408_and_the_ticket_is_gone(self, client: httpx.Client) -> None:
        with busy(client):
            for more, headers in (
                ({"prism": {"deadline_s": 0.5}}, {}),
                ({}, {"x-prism-deadline-s": "0.5"}),
            ):
                asked = time.monotonic()
                response = client.post(CHAT, json=chat(**more), headers=headers)
                assert error_of(response, 408)["code"] == "deadline"
                assert 0.5 <= time.monotonic() - asked < 1.5
                now = state(client)
                assert now["waiting"] == 0
                assert now["sent"] == 1

    def test_a_deadline_that_is_none_is_a_400(self, client: httpx.Client) -> None:
        for value in (-1, 0, 1e9, "soon"):
            error = error_of(client.post(CHAT, json=chat(prism={"deadline_s": value})), 400)
            assert error["param"] == "prism.deadline_s"
            headers = {"x-prism-deadline-s": str(value)}
            error = error_of(client.post(CHAT, json=chat(), headers=headers), 400)
            assert error["param"] == "x-prism-deadline-s"


class TestKeepAlives:
    def test_a_stream_that_waits_opens_with_comments_and_says_the_rest_in_its_first_chunk(
        self, client: httpx.Client
    ) -> None:
        with (
            busy(client, max_tokens=700),
            client.stream("POST", CHAT, json=chat(stream=True)) as response,
        ):
            opened = time.monotonic()
            assert response.status_code == 200
            assert not any(name.startswith("x-prism") for name in response.headers)
            chunks = events("".join(response.iter_text()))
        assert time.monotonic() - opened < 30
        comments = [c for c in chunks if c == ": keep-alive"]
        assert len(comments) >= 2
        assert chunks[: len(comments)] == comments
        first = chunks[len(comments)]
        assert set(first["prism"]) == {"replica", "lane", "queue_ms"}
        assert first["prism"]["queue_ms"] > 800
        assert chunks[-1] == "[DONE]"
        assert not any("prism" in c for c in chunks[len(comments) + 1 : -1])

    def test_after_comments_an_error_is_an_event_without_done(self, client: httpx.Client) -> None:
        with busy(client):
            body = chat(stream=True, prism={"deadline_s": 2.0})
            response = client.post(CHAT, json=body)
        assert response.status_code == 200
        chunks = events(response.text)
        assert chunks[0] == ": keep-alive"
        assert chunks[-1]["error"]["code"] == "deadline"
        assert chunks[-1]["error"]["status"] == 408
        assert "[DONE]" not in chunks

    def test_before_comments_an_error_is_a_status(self, client: httpx.Client) -> None:
        with busy(client):
            response = client.post(CHAT, json=chat(stream=True, prism={"deadline_s": 0.3}))
            error_of(response, 408)

    def test_an_answer_that_is_no_stream_gets_no_comments(self, client: httpx.Client) -> None:
        with busy(client, max_tokens=500):
            response = client.post(CHAT, json=chat())
        assert response.status_code == 200
        assert response.text.startswith("{")
        assert response.headers["x-prism-lane"]


class TestHttp:
    def test_errors_of_the_framework_are_in_the_openai_body(self, client: httpx.Client) -> None:
        error_of(client.get("/nothing"), 404)
        assert client.get(CHAT).headers["allow"] == "POST"
        error_of(client.get(CHAT), 405)
        assert error_of(client.get("/prism/state?top=x"), 400)["param"] == "top"

    def test_an_unknown_model_is_a_404(self, client: httpx.Client) -> None:
        for path, body in ((CHAT, chat(model="other")), (COMPLETIONS, completion(model="other"))):
            error = error_of(client.post(path, json=body), 404)
            assert (error["code"], error["param"]) == ("model_not_found", "model")

    def test_a_tenant_header_that_is_no_name_is_a_400(self, client: httpx.Client) -> None:
        for name in ("", "a b", "x" * 65):
            response = client.post(CHAT, json=chat(), headers={"x-prism-tenant": name})
            assert error_of(response, 400)["param"] == "x-prism-tenant"
