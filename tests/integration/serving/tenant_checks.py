"""What must hold between tenants whatever the engine."""

from __future__ import annotations

from typing import Any

import httpx

DOCUMENT = " ".join(f"word{n}" for n in range(250))


def body(document: str, question: str, **more: Any) -> dict[str, Any]:
    part = {"type": "text", "text": document, "prism": {"segment": "d", "reorderable": True}}
    content = [part, {"type": "text", "text": question}]
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 2,
        "prism": {"report": True},
    } | more


def ask(client: httpx.Client, tenant: str | None, **more: Any) -> dict[str, Any]:
    headers = {} if tenant is None else {"x-prism-tenant": tenant}
    response = client.post(
        "/v1/chat/completions", json=body(DOCUMENT, "Why?", **more), headers=headers
    )
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def cached(answer: dict[str, Any]) -> tuple[int, int]:
    """Cached tokens: what the engine found, and what was predicted."""
    usage, report = answer["usage"], answer["prism"]
    return usage["prompt_tokens_details"]["cached_tokens"], report["cached_tokens_predicted"]


def check_that_tenants_share_nothing(client: httpx.Client) -> None:
    first = ask(client, None)
    whole = first["usage"]["prompt_tokens"]
    assert cached(first) == (0, 0)
    assert cached(ask(client, "a")) == (0, 0), "the default tenant's document"
    assert cached(ask(client, "b")) == (0, 0), "another tenant's document"
    assert cached(ask(client, "b", cache_salt="mine")) == (0, 0), "without the client's own salt"
    for again in (
        ask(client, None),
        ask(client, "a"),
        ask(client, "b"),
        ask(client, "b", cache_salt="mine"),
    ):
        assert min(cached(again)) > 0.9 * whole
        # One request waits at a time, and its own bucket is all that it is told of.
        assert " of 1" in again["prism"]["reason"]
