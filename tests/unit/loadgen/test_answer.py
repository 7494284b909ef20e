"""What an OpenAI answer says ends up in its row, whatever its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.answer import Answer
from loadgen.rows import Outcome, RequestRow


def stream(*values: dict[str, Any] | str) -> RequestRow:
    row = RequestRow(id="1", scheduled_s=0.0)
    answer = Answer(row)
    for second, value in enumerate(values, 1):
        if not answer.over:
            answer.chunk(value if isinstance(value, str) else json.dumps(value), float(second))
    answer.end_of_stream()
    return row


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def test_only_chunks_with_content_are_timed() -> None:
    row = stream(
        delta(role="assistant", content=""),
        delta(content="Par"),
        delta(content="is"),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        "[DONE]",
    )
    assert (row.text, row.chunk_s) == ("Paris", [2.0, 3.0])
    assert (row.outcome, row.finish_reason) == (Outcome.ANSWERED, "stop")


@pytest.mark.parametrize(
    "chunk",
    [
        delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
        delta(reasoning_content="hm"),
        delta(reasoning="hm"),
        {"choices": [{"text": "Paris"}]},
    ],
)
def test_tool_calls_reasoning_and_completions_are_content_too(chunk: dict[str, Any]) -> None:
    assert stream(chunk, "[DONE]").chunk_s == [1.0]


def test_a_thought_under_both_of_its_names_is_one_thought() -> None:
    both = delta(reasoning="hm", reasoning_content="hm", content=None)
    assert stream(both, "[DONE]").text == "hm"
    assert stream(delta(reasoning=None, reasoning_content=None, content=""), "[DONE]").chunk_s == []


def test_usage_and_report_come_from_any_chunk_and_parts_are_merged() -> None:
    row = stream(
        {"choices": [], "prism": {"lane": "cold", "replica": "a"}},
        delta(content="x"),
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        },
        {"choices": [], "prism": {"order": ["b", "a"]}},
        "[DONE]",
    )
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (10, 4, 1)
    assert row.prism == {"lane": "cold", "replica": "a", "order": ["b", "a"]}
    assert (row.lane, row.replica) == ("cold", "a")


def test_unknown_counts_stay_unknown() -> None:
    row = stream({"usage": {"prompt_tokens": 3, "prompt_tokens_details": None}}, "[DONE]")
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (3, None, None)


def test_a_stream_without_done_is_truncated() -> None:
    assert stream(delta(content="x")).outcome is Outcome.TRUNCATED


def test_an_error_event_ends_the_stream_with_its_code() -> None:
    row = stream(delta(content="x"), {"error": {"message": "gone", "code": 503}}, "[DONE]")
    assert (row.outcome, row.error_code, row.error_message) == (
        Outcome.STREAM_ERROR,
        "503",
        "gone",
    )


@pytest.mark.parametrize("data", ["{", "[1]", "null", ""])
def test_data_that_is_no_object_is_malformed(data: str) -> None:
    assert stream(data, "[DONE]").outcome is Outcome.MALFORMED


@pytest.mark.parametrize(
    "value",
    [
        {"choices": None},
        {"choices": ["x"]},
        {"choices": [{"delta": None}]},
        {"usage": [], "prism": "x", "choices": [{"delta": {"content": None}}]},
    ],
)
def test_odd_shapes_are_survived(value: dict[str, Any]) -> None:
    row = stream(value, "[DONE]")
    assert (row.outcome, row.chunk_s, row.prism) == (Outcome.ANSWERED, [], None)


def test_a_whole_answer_is_read_like_a_stream() -> None:
    row = RequestRow(id="1", scheduled_s=0.0)
    body = {
        "choices": [{"message": {"content": "Paris"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
        "prism": {"lane": "hot"},
    }
    Answer(row).whole(json.dumps(body))
    assert (row.outcome, row.text, row.prompt_tokens) == (Outcome.ANSWERED, "Paris", 7)
    assert (row.lane, row.finish_reason) == ("hot", "length")
    Answer(row).whole("<html>")
    assert row.outcome is Outcome.MALFORMED


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"error": {"message": "m", "type": "t", "code": "c"}}, "c", "m"),
        ({"error": {"message": "m", "type": "t", "code": None}}, "t", "m"),
        ({"error": "plain"}, None, "plain"),
        ("<html>", None, "<html>"),
        ({"object": "error", "message": "m", "code": 400}, "400", "m"),
    ],
)
def test_errors_of_any_shape_give_code_and_message(
    body: object, code: str | None, message: str
) -> None:
    row = RequestRow(id="1", scheduled_s=0.0)
    Answer(row).error(body)
    assert (row.error_code, row.error_message) == (code, message)
