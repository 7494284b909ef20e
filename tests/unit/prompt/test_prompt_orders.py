"""Whatever the conversation and the order: the text is the template's, and the counts are exact."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism_ray.dart.anchors import path_keys
from prism_ray.model import Order, Skeleton
from prism_ray.prompt import PromptLimits, PromptTokenizer, Splitter
from prism_ray.prompt.content_format import ContentFormat

PIECES = [
    *"ab1.\n\t ",
    "  ",
    " 12",
    "é",
    "e\u0301",
    "\u0301",
    "漢字",
    "👩\u200d👧",
    "שלום",
    "\u200f",
    "\ue000",
    "<|im_end|>",
    "[INST]",
    "the quick brown fox jumps",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)

fast = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def parts(draw: st.DrawFn) -> list[dict[str, Any]]:
    drawn = []
    for number in range(draw(st.integers(0, 6))):
        part: dict[str, Any] = {"type": "text", "text": draw(TEXTS)}
        kind = draw(st.sampled_from(["plain", "fixed", "movable", "movable", "movable"]))
        if kind != "plain":
            part["prism"] = {"segment": f"d{number}", "reorderable": kind == "movable"}
        drawn.append(part)
    return drawn


CONTENTS = st.one_of(TEXTS, parts())
SCHEMA = {"type": "object", "properties": {"q": {"type": "string", "description": "größer <b>"}}}
# In the form that the engine hands to the template, which fills in what a client leaves out.
TOOLS = [
    {
        "type": "function",
        "function": {"description": "Find it.", "name": name, "parameters": schema},
        "defer_loading": None,
    }
    for name, schema in (("search", SCHEMA), ("stop", None))
]
CALL = {
    "id": "c1",
    "index": None,
    "type": "function",
    "function": {"name": "search", "arguments": {"q": "漢 12", "n": 1.5}},
}


THOUGHT = {"type": "text", "text": "<think>\nhm\n</think>\n\nSo"}


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """Turns of the assistant; some begin with its thinking, some call a tool."""
    content = draw(CONTENTS)
    if draw(st.booleans()):
        if isinstance(content, str):
            content = THOUGHT["text"] + content
        else:
            mark = draw(st.sampled_from([{}, {"prism": {"segment": "t", "reorderable": True}}]))
            content = [THOUGHT | mark, *content]
    more = draw(st.sampled_from([{}, {}, {"reasoning_content": "hm\n"}, {"tool_calls": [CALL]}]))
    return {"role": "assistant", "content": content, **more}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Roles alternate, as Llama-2's template wants it."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(CONTENTS)})
    for _ in range(draw(st.integers(0, 2))):
        messages.append({"role": "user", "content": draw(CONTENTS)})
        messages.append(draw(answers()))
    messages.append({"role": "user", "content": draw(parts())})
    return {"messages": messages} | draw(st.sampled_from([{}, {"tools": TOOLS}]))


@st.composite
def agents(draw: st.DrawFn) -> dict[str, Any]:
    """Conversations with results of tools, also such whose last turns are calls and results."""
    body = draw(bodies())
    for _ in range(draw(st.integers(1, 2))):
        thought = draw(st.sampled_from([{}, {"reasoning_content": "and\nso"}]))
        call = {"role": "assistant", "content": draw(CONTENTS), "tool_calls": [CALL], **thought}
        result = {"role": "tool", "tool_call_id": "c1", "content": draw(CONTENTS)}
        body["messages"] += [call, result]
    if draw(st.booleans()):
        body["messages"] += [draw(answers()), {"role": "user", "content": draw(parts())}]
    return body


def draw_order(data: st.DataObject, skeleton: Skeleton) -> Order:
    order = list(skeleton.native_order)
    for run in skeleton.runs:
        for slot, index in zip(run, data.draw(st.permutations(run)), strict=True):
            order[slot] = index
    return tuple(order)


def rendered(tokenizer: PromptTokenizer, body: dict[str, Any]) -> str:
    """What the template makes of a body without ``prism``, said in another way than the splitter's."""
    plain = []
    for message in body["messages"]:
        content = message["content"]
        joined = tokenizer.content_format is ContentFormat.STRING or message["role"] == "tool"
        if isinstance(content, list) and joined:
            content = " ".join(part["text"] for part in content)
        plain.append(message | {"content": content})
    return tokenizer.render_chat(plain, body.get("tools"))


@fast
@given(body=bodies(), data=st.data())
def test_any_allowed_order_is_the_templates_text_with_the_skeletons_length(
    body: dict[str, Any], data: st.DataObject, tokenizer: PromptTokenizer, splitter: Splitter
) -> None:
    check_order(body, data, tokenizer, splitter)


@fast
@given(body=agents(), data=st.data())
@pytest.mark.parametrize("name", ["builtin", "parts", "qwen3", "smollm2"])
def test_so_it_is_in_the_middle_of_an_agents_work(
    body: dict[str, Any],
    data: st.DataObject,
    name: str,
    tokenizer_named: Callable[[str], PromptTokenizer],
) -> None:
    tokenizer = tokenizer_named(name)
    limits = PromptLimits(automatic_min_tokens=6)
    check_order(body, data, tokenizer, Splitter(tokenizer, limits, b"secret"))


def check_order(
    body: dict[str, Any], data: st.DataObject, tokenizer: PromptTokenizer, splitter: Splitter
) -> None:
    prepared = splitter.chat(body, b"tenant")
    order = draw_order(data, prepared.skeleton)
    assembled = prepared.assemble(order)
    assert assembled.text == rendered(tokenizer, assembled.body)
    assert not assembled.fallback
    assert len(assembled.prompt_ids) == prepared.skeleton.prompt_tokens
    assert assembled.boundaries == prepared.skeleton.boundaries(order)
    assert assembled.boundaries[-1] == len(assembled.prompt_ids)
    path = prepared.skeleton.path(order)
    named = [k for k, a in zip(path_keys(path), path, strict=True) if a.id in assembled.segments]
    assert assembled.path_keys == (*named, None)
    if order == prepared.skeleton.native_order and not prepared.skeleton.runs:
        assert assembled.prompt_ids == tokenizer.encode(assembled.text)


@fast
@given(body=bodies(), data=st.data())
def test_the_ids_mean_the_text_and_a_segments_ids_do_not_depend_on_its_place(
    body: dict[str, Any], data: st.DataObject, tokenizer: PromptTokenizer, splitter: Splitter
) -> None:
    prepared = splitter.chat(body, b"tenant")
    skeleton = prepared.skeleton
    native = prepared.assemble()
    order = draw_order(data, skeleton)
    moved = prepared.assemble(order)
    spans = _segment_spans(skeleton, order)
    for index, (start, end) in _segment_spans(skeleton, skeleton.native_order).items():
        a, b = spans[index]
        assert native.prompt_ids[start:end] == moved.prompt_ids[a:b]
    if unicodedata.is_normalized("NFC", moved.text):  # Qwen's tokenizer normalizes
        # Decoding drops the space that SentencePiece put in front; added tokens hide another one.
        strip = " " if tokenizer.special_prefix else ""
        decoded = tokenizer.decode(moved.prompt_ids).replace(strip, "")
        assert decoded == moved.text.replace(strip, "")


def _segment_spans(skeleton: Skeleton, order: Order) -> dict[int, tuple[int, int]]:
    ends = skeleton.boundaries(order)[1 if skeleton.system else 0 :]
    return {
        index: (end - skeleton.segments[index].tokens, end)
        for index, end in zip(order, ends, strict=False)
    }


@fast
@given(body=bodies())
def test_every_run_is_of_neighbours_that_the_client_marked(
    body: dict[str, Any], splitter: Splitter
) -> None:
    skeleton = splitter.chat(body, b"tenant").skeleton
    marked = [
        part["prism"]["segment"]
        for message in body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part.get("prism", {}).get("reorderable")
    ]
    for run in skeleton.runs:
        assert list(run) == list(range(run[0], run[-1] + 1))
        labels = [skeleton.segments[slot].label for slot in run]
        assert ",".join(labels) in ",".join(marked)
