"""Automatic and opaque prompts have exactly the ids that SGLang's own chat processing gives them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism_ray.prompt import PromptError, PromptLimits, Splitter, load_tokenizer

from ...unit.prompt.stand_in_models import sentencepiece_like
from .oracle_process import OracleProcess, start_oracle

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("PRISM_SHARED_DATA", ROOT.parent / "shared" / "data"))
MODELS = Path(os.environ.get("PRISM_MODELS_DIR", ROOT / "models"))
TOKENIZERS = {
    "builtin": ROOT / "prism_ray" / "data" / "builtin-tokenizer",
    "qwen3": DATA / "tokenizer-qwen3",
    "smollm2": MODELS / "SmolLM2-135M-Instruct",
}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="sglang is not installed"
)


@pytest.fixture(scope="module")
def oracle() -> Iterator[OracleProcess]:
    yield from start_oracle()


@pytest.fixture(scope="module", params=[*sorted(TOKENIZERS), "llama2"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Splitter]:
    path = TOKENIZERS.get(request.param) or sentencepiece_like(tmp_path_factory.mktemp("llama2"))
    if not (path / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizer {request.param}")
    limits = PromptLimits(automatic_min_tokens=4)
    return path, Splitter(load_tokenizer(path), limits, b"secret")


TOOLS = [
    {
        "type": "function",
        "function": {
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
            "name": "search",
            "description": "Suche im Netz – größer als <b>",
        },
    },
    {"type": "function", "function": {"name": "stop", "strict": True}, "defer_loading": False},
]
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"q": "Köln", "n": 1.50}'},
}
AGENT = [
    {"role": "system", "content": "Policy.\n\n1. Be kind.\n  2. Be brief."},
    {"role": "user", "content": "Find it."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "found 12"}]},
]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": t} for t in texts]


def answer(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


BODIES: dict[str, dict[str, Any]] = {
    "plain": {"messages": [user("hello")]},
    "empty": {"messages": [user("")]},
    "no parts": {"messages": [user([])]},
    "parts": {"messages": [user(text("a", " b ", "", "\n 12 c"))]},
    "whitespace before digits": {"messages": [user("list:\n   1. a\n   22. b\t\t3")]},
    "unicode": {
        "messages": [
            user("é e\u0301 👩\u200d👩\u200d👧 漢字 שלום \u200f \ufeff \U0001f1e9\U0001f1ea")
        ]
    },
    "special tokens in text": {"messages": [user("a <|im_end|>\n<|im_start|>system\nb")]},
    "two systems": {
        "messages": [
            {"role": "system", "content": "A"},
            {"role": "SYSTEM", "content": "B"},
            user("c"),
        ]
    },
    "developer": {"messages": [{"role": "developer", "content": "A"}, user("c")]},
    "name is dropped": {"messages": [{"role": "user", "name": "bob", "content": "c", "x": 1}]},
    "tools": {"messages": [user("hello")], "tools": TOOLS},
    "tools off": {"messages": [user("hello")], "tools": TOOLS, "tool_choice": "none"},
    "no tools": {"messages": [user("hello")], "tools": []},
    "one tool": {
        "messages": [user("hello")],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "search"}},
    },
    "agent": {"messages": AGENT, "tools": TOOLS},
    "agent goes on": {"messages": [*AGENT, answer("Done."), user("thanks")], "tools": TOOLS},
    "bad arguments": {
        "messages": [
            user("x"),
            answer(None, tool_calls=[{"function": {"name": "f", "arguments": "{"}}]),
            user("y"),
        ]
    },
    "thinking history": {
        "messages": [user("1+1?"), answer("<think>\nsum\n</think>\n\n2"), user("and 2+2?")]
    },
    "reasoning content": {
        "messages": [user("1+1?"), answer("2", reasoning_content="sum"), user("and 2+2?")]
    },
    "thinking in the loop": {
        "messages": [
            user("go"),
            answer("<think>\nhm\n</think>\n\nok", tool_calls=[CALL]),
            *AGENT[3:],
        ],
        "tools": TOOLS,
    },
    "thinking parts": {
        "messages": [
            user("a"),
            answer([{"type": "thinking", "thinking": "t"}, *text("b")]),
            user("c"),
        ]
    },
    "no thinking": {"messages": [user("a")], "chat_template_kwargs": {"enable_thinking": False}},
    "effort none": {"messages": [user("a")], "reasoning_effort": "none"},
    "effort high": {"messages": [user("a")], "reasoning_effort": "high"},
    "effort object": {"messages": [user("a")], "reasoning": {"effort": "none"}},
    "effort in kwargs": {
        "messages": [user("a")],
        "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": False},
    },
    "last is an answer": {"messages": [user("a"), answer("The answer is ")]},
    "continue": {"messages": [user("a"), answer("The answer is ")], "continue_final_message": True},
    "continue parts": {
        "messages": [user("a"), answer(text("The", "answer "))],
        "continue_final_message": True,
    },
    "long agent history": {
        "messages": [
            *AGENT,
            answer("Done. " * 300),
            *AGENT[1:],
            answer("é漢 12\n" * 300),
            user("thanks"),
        ],
        "tools": TOOLS,
    },
    "tool response in user text": {
        "messages": [user("q"), answer("a"), user("<tool_response>\nx\n</tool_response>")]
    },
}


@pytest.mark.parametrize("name", BODIES)
def test_ids_equal_sglangs(name: str, model: tuple[Path, Splitter], oracle: OracleProcess) -> None:
    path, splitter = model
    body = {"model": "model", **BODIES[name]}
    expected = oracle.ask(path, body)
    for mode in ({}, {"prism": {"segments": "off"}}):
        if "error" in expected:
            with pytest.raises(PromptError):
                splitter.chat(body | mode, b"t")
        else:
            prepared = splitter.chat(body | mode, b"t")
            assert prepared.assemble().prompt_ids == expected["ids"]
            assert prepared.skeleton.prompt_tokens == len(expected["ids"])


@pytest.mark.parametrize("prompt", ["hello", " 12  34\n", "é漢 👩\u200d👩", "<|im_start|>x"])
def test_completion_ids_equal_the_engines_tokenizer(
    prompt: str, model: tuple[Path, Splitter], oracle: OracleProcess
) -> None:
    path, splitter = model
    expected = oracle.ask(path, {"prompt": prompt})["ids"]
    assert splitter.completions({"prompt": prompt}, b"t").assemble().prompt_ids == expected


MARKED = [
    part | {"prism": {"segment": f"d{n}", "reorderable": True}}
    for n, part in enumerate(text("one 1\n", " two", "  33"))
]
READ = user([*text("Read:"), *MARKED, *text("Why?")])
THOUGHT = answer("<think>\nsum\n</think>\n\n2")
REORDERED: dict[str, dict[str, Any]] = {
    "plain": {"messages": [READ]},
    "tools": {"messages": [AGENT[0], READ], "tools": TOOLS},
    "thinking history": {"messages": [user("1+1?"), THOUGHT, READ]},
    "reasoning content": {"messages": [user("1+1?"), answer("2", reasoning_content="sum"), READ]},
    "no thinking": {"messages": [READ], "chat_template_kwargs": {"enable_thinking": False}},
    "agent": {"messages": [*AGENT, answer("Done."), READ], "tools": TOOLS},
    "before the agent's calls": {"messages": [READ, *AGENT[2:]], "tools": TOOLS},
    "before thoughts and calls": {
        "messages": [READ, THOUGHT | {"tool_calls": [CALL]}, *AGENT[3:]],
        "tools": TOOLS,
    },
    "a tool's results": {
        "messages": [*AGENT[:3], READ | {"role": "tool", "tool_call_id": "c1"}],
        "tools": TOOLS,
    },
}


@pytest.mark.parametrize("case", REORDERED)
@pytest.mark.parametrize("name", ["qwen3", "smollm2", "builtin"])
def test_the_body_of_a_decided_order_renders_to_the_assembled_text(
    name: str, case: str, oracle: OracleProcess
) -> None:
    path = TOKENIZERS[name]
    if not (path / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizer {name}")
    tokenizer = load_tokenizer(path)
    body = {"model": "model", **REORDERED[case]}
    prepared = Splitter(tokenizer, PromptLimits(automatic_min_tokens=4), b"s").chat(body, b"t")
    order = list(prepared.skeleton.native_order)
    ((first, second, third),) = prepared.skeleton.runs
    order[first : third + 1] = third, first, second
    assembled = prepared.assemble(tuple(order))
    expected = oracle.ask(path, assembled.body)["ids"]
    assert assembled.text == tokenizer.decode(expected)
    assert assembled.text == tokenizer.decode(assembled.prompt_ids)
    assert "Read:   33 one 1\n  two Why?" in assembled.text


TEXTS = st.lists(
    st.sampled_from(
        [*"ab Z1\n\t.<>{}|_/é漢👩\u0301\u200d", "<think>", "</think>", "<|im_end|>", "  "]
    ),
    max_size=12,
).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    contents = st.one_of(TEXTS, st.lists(TEXTS, max_size=3).map(lambda ts: text(*ts)))
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(contents)})
    for role in draw(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=5)):
        messages.append({"role": role, "content": draw(contents)})
    messages.append(user(draw(contents)))
    body: dict[str, Any] = {"model": "model", "messages": messages}
    if draw(st.booleans()):
        body["tools"] = TOOLS
    return body


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=conversations())
def test_ids_of_random_conversations_equal_sglangs(
    body: dict[str, Any], model: tuple[Path, Splitter], oracle: OracleProcess
) -> None:
    path, splitter = model
    expected = oracle.ask(path, body)
    if "error" in expected:
        with pytest.raises(PromptError):
            splitter.chat(body, b"t")
    else:
        assert splitter.chat(body, b"t").assemble().prompt_ids == expected["ids"]
