"""Bodies that are refused: the status, and the path of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from prism_ray.prompt import PromptError, PromptLimits, Splitter, strip_prism

USER = {"role": "user", "content": "hi"}


def marked(prism: Any, text: Any = "x") -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": [{"type": "text", "text": text, "prism": prism}]}]
    }


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [fields]}


PART = "messages[0].content[0]"
CHAT = {
    "no messages": ({}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "messages are text": ({"messages": "hi"}, "messages"),
    "a message is text": ({"messages": ["hi"]}, "messages[0]"),
    "no role": (message(content="x"), "messages[0].role"),
    "unknown role": (message(role="king", content="x"), "messages[0].role"),
    "null user content": (message(role="user", content=None), "messages[0].content"),
    "number as content": (message(role="system", content=3), "messages[0].content"),
    "a part is text": (message(role="user", content=["x"]), PART),
    "media part": (message(role="user", content=[{"type": "image_url"}]), f"{PART}.type"),
    "part without text": (message(role="user", content=[{"type": "text"}]), f"{PART}.text"),
    "prism is text": (marked("on"), f"{PART}.prism"),
    "unknown part field": (marked({"segment": "a", "pin": 1}), f"{PART}.prism.pin"),
    "label is a number": (marked({"segment": 3}), f"{PART}.prism.segment"),
    "label is empty": (marked({"segment": ""}), f"{PART}.prism.segment"),
    "label is long": (marked({"segment": "x" * 65}), f"{PART}.prism.segment"),
    "no label": (marked({"reorderable": True}), f"{PART}.prism.segment"),
    "reorderable is text": (
        marked({"segment": "a", "reorderable": "yes"}),
        f"{PART}.prism.reorderable",
    ),
    "segment too big": (marked({"segment": "a"}, "é" * 501), f"{PART}.text"),
    "too many segments": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "x", "prism": {"segment": "a"}}] * 5,
                }
            ]
        },
        "messages",
    ),
    "prism on a message": (message(role="user", content="x", prism={}), "messages[0].prism"),
    "unknown body field": ({"messages": [USER], "prism": {"sgments": 1}}, "prism.sgments"),
    "completion field": ({"messages": [USER], "prism": {"system": "x"}}, "prism.system"),
    "unknown mode": ({"messages": [USER], "prism": {"segments": "on"}}, "prism.segments"),
    "list in chat": ({"messages": [USER], "prism": {"segments": []}}, "prism.segments"),
    "surrogate": (message(role="user", content="\ud800"), "messages"),
    "client's template": (
        {"messages": [USER], "chat_template_kwargs": {"chat_template": "x"}},
        "chat_template_kwargs.chat_template",
    ),
    "tools are text": ({"messages": [USER], "tools": "x"}, "tools"),
    "tool without name": (
        {"messages": [USER], "tools": [{"function": {}}]},
        "tools[0].function.name",
    ),
    "effort": ({"messages": [USER], "reasoning_effort": "huge"}, "reasoning_effort"),
    "flag": ({"messages": [USER], "continue_final_message": 1}, "continue_final_message"),
    "call arguments": (
        message(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": "[1]"}}]),
        "messages[0].tool_calls[0].function.arguments",
    ),
}
LIMITS = PromptLimits(segments=4, segment_bytes=1000)


@pytest.fixture
def limited(builtin: Splitter) -> Splitter:
    return Splitter(builtin._tokenizer, LIMITS, b"s")


@pytest.mark.parametrize("name", CHAT)
def test_a_bad_chat_body_is_refused_with_its_path(name: str, limited: Splitter) -> None:
    body, path = CHAT[name]
    with pytest.raises(PromptError) as caught:
        limited.chat(body, b"t")
    assert caught.value.path == path
    assert caught.value.status == 400
    assert str(caught.value).startswith(path)


def test_the_message_says_what_was_expected_and_what_came(limited: Splitter) -> None:
    with pytest.raises(PromptError) as caught:
        limited.chat(marked({"segment": 3}), b"t")
    expected = (
        "messages[0].content[0].prism.segment: expected a string of 1..64 characters, got int"
    )
    assert str(caught.value) == expected


def test_what_the_template_refuses_is_a_400(tokenizer_named: Any) -> None:
    splitter = Splitter(tokenizer_named("llama2"), PromptLimits(), b"s")
    with pytest.raises(PromptError, match="roles must alternate"):
        splitter.chat({"messages": [USER, USER]}, b"t")


def test_a_prompt_that_fills_the_context_is_refused_at_the_door(builtin: Splitter) -> None:
    tokens = builtin.chat({"messages": [USER]}, b"t").skeleton.prompt_tokens
    tight = Splitter(builtin._tokenizer, PromptLimits(context_length=tokens), b"s")
    roomy = Splitter(builtin._tokenizer, PromptLimits(context_length=tokens + 1), b"s")
    with pytest.raises(PromptError) as caught:
        tight.chat({"messages": [USER]}, b"t")
    assert caught.value.code == "context_length_exceeded"
    assert roomy.chat({"messages": [USER]}, b"t").skeleton.prompt_tokens == tokens


def test_deadline_and_report_are_left_to_the_ingress(builtin: Splitter) -> None:
    theirs = {"deadline_s": "later", "report": 3}
    made = builtin.chat({"messages": [USER], "prism": theirs}, b"t")
    assert made.skeleton == builtin.chat({"messages": [USER]}, b"t").skeleton


def test_an_empty_secret_is_refused(builtin: Splitter) -> None:
    with pytest.raises(ValueError, match="secret"):
        Splitter(builtin._tokenizer, PromptLimits(), b"").chat({"messages": [USER]}, b"t")


def test_strip_prism_leaves_a_clean_body_and_the_original_alone() -> None:
    body = marked({"segment": "a"}) | {"prism": {"report": True}, "model": "m"}
    body["messages"].append({"role": "assistant", "content": None, "prism": 1})
    before = repr(body)
    assert strip_prism(body) == {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": None},
        ],
    }
    assert repr(body) == before
