"""OpenAI bodies around SGLang: errors, stream framing, token counts."""

from __future__ import annotations

from typing import Any

import pytest

from prism_ray.engine.base import EngineCall, EngineRefused
from prism_ray.engine.sglang_bodies import (
    TokenCounter,
    check_call,
    error_status,
    field_path,
    nested_error,
    stream_payload,
)


def test_sglangs_flat_error_becomes_openais() -> None:
    flat = {"object": "error", "message": "no", "type": "BadRequest", "param": None, "code": 400}
    assert nested_error(flat, 400) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    }
    assert nested_error({"error": flat}, 503)["error"]["type"] == "internal_error"
    assert nested_error({"error": "text"}, 400)["error"]["message"] == "text"


@pytest.mark.parametrize(
    ("body", "param"),
    [({"n": 2}, "n"), ({"prompt": ["a"]}, "prompt"), ({"prompt": [[1]]}, "prompt")],
)
def test_what_no_engine_of_ours_takes_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(EngineRefused) as refused:
        check_call(EngineCall("0" * 32, "completions", body, [1]))
    assert refused.value.status == 400
    assert refused.value.body["error"]["param"] == param


def test_an_empty_prompt_is_refused_and_an_ordinary_call_is_not() -> None:
    with pytest.raises(EngineRefused, match="empty"):
        check_call(EngineCall("0" * 32, "chat", {}, []))
    for body in ({}, {"n": 1}, {"n": None}, {"prompt": "x"}, {"prompt": [1, 2]}):
        check_call(EngineCall("0" * 32, "completions", body, [1, 2]))


def test_a_field_path_leaves_out_the_types_that_pydantic_tried() -> None:
    location = ("messages", 0, "function-after[check(), Generic]", "ChatMessage", "role")
    assert field_path(location) == "messages.0.role"
    assert field_path(()) == ""


def test_the_json_is_taken_out_of_an_event() -> None:
    assert stream_payload('data: {"a": 1}\n\n') == b'{"a": 1}'
    assert stream_payload(b"data:{}\n\n") == b"{}"
    assert stream_payload("data: [DONE]\n\n") is None
    assert stream_payload("\n") is None


def test_an_error_payload_has_a_status_and_an_answer_has_none() -> None:
    assert error_status({"choices": []}) is None
    assert error_status({"error": {"code": 503}}) == 503
    assert error_status({"error": {"code": "odd"}}) == 500


def _chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def test_the_first_token_counts_with_its_text_and_not_with_the_role() -> None:
    counter = TokenCounter()
    stream = [
        (_chat(role="assistant", content=""), 1, 0),
        (_chat(content="a"), 1, 1),
        (_chat(reasoning_content="b"), 4, 3),
        (_chat(tool_calls=[{}]), 5, 1),
        (_chat("length"), 6, 1),
        ({"choices": [], "usage": {}}, 6, 0),
    ]
    for payload, total, expected in stream:
        assert counter.take(payload, total) == expected


def test_a_whole_answer_carries_all_its_tokens() -> None:
    assert TokenCounter().take({"choices": [{"message": {}, "finish_reason": "stop"}]}, 7) == 7
    assert TokenCounter().take({"choices": [{"text": "", "finish_reason": "stop"}]}, 3) == 3
