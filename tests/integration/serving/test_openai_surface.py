"""What OpenAI clients can ask for, through the whole application on the real engine with random weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai import OpenAI

pytestmark = [pytest.mark.serve, pytest.mark.real_engine]

CONFIG: dict[str, Any] = {
    "extends": "cpu-smollm2",
    "model": {"name": "tiny", "path": "models:random-tiny"},
    "engine": {
        "args": {
            "max_total_tokens": 20_000,
            "context_length": 4096,
            "constrained_json_disable_any_whitespace": True,
        }
    },
}
ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me something. " * 20}],
    "max_tokens": 8,
}
GO_ON = {"extra_body": {"ignore_eos": True}}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def http(run_app: Callable[..., httpx.Client], random_tiny: Any) -> httpx.Client:
    return run_app(CONFIG)


@pytest.fixture(scope="module")
def openai(http: httpx.Client) -> OpenAI:
    return OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0)


class TestSeveralChoices:
    @pytest.mark.parametrize("endpoint", ["chat", "completions"])
    def test_whole_answers_have_all_choices_and_one_usage(
        self, openai: OpenAI, endpoint: str
    ) -> None:
        fields = {"n": 3, "max_tokens": 5, "temperature": 1.0, **GO_ON}
        if endpoint == "chat":
            answer: Any = openai.chat.completions.create(**ASK | fields)
            texts = [c.message.content for c in answer.choices]
        else:
            answer = openai.completions.create(model="tiny", prompt="Once " * 50, **fields)
            texts = [c.text for c in answer.choices]
        assert [c.index for c in answer.choices] == [0, 1, 2]
        assert len(set(texts)) > 1, "choices are sampled apart"
        assert answer.usage.completion_tokens == 15
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 15
        # The other choices find the prompt cached; the request as a whole did not.
        assert answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens / 2

    @pytest.mark.parametrize("endpoint", ["chat", "completions"])
    def test_streams_carry_every_choice_under_its_index(
        self, openai: OpenAI, endpoint: str
    ) -> None:
        fields = {
            "n": 3,
            "max_tokens": 5,
            "temperature": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **GO_ON,
        }
        if endpoint == "chat":
            chunks: list[Any] = list(openai.chat.completions.create(**ASK | fields))
        else:
            chunks = list(openai.completions.create(model="tiny", prompt="Two " * 50, **fields))
        ends = [c.index for chunk in chunks for c in chunk.choices if c.finish_reason]
        assert sorted(ends) == [0, 1, 2]
        assert len({chunk.id for chunk in chunks}) == 1
        usages = [chunk.usage for chunk in chunks if chunk.usage]
        assert len(usages) == 1
        assert usages[0].completion_tokens == 15
        assert chunks[-1].usage is not None

    def test_the_other_choices_share_the_first_ones_prompt(self, http: httpx.Client) -> None:
        text = "Pages that three choices share. " * 60
        body = {"prompt": text, "n": 3, "max_tokens": 2, "ignore_eos": True}
        before = _settled_totals(http)
        answer = http.post("/v1/completions", json=body).json()
        prompt = answer["usage"]["prompt_tokens"]
        assert prompt > 300
        after = _wait_for_totals(http, before[0] + prompt)
        # Counted once: what the others found cached is no hit of this request.
        assert after[0] - before[0] == prompt
        assert after[1] - before[1] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_a_list_of_prompts_is_refused(self, http: httpx.Client) -> None:
        answer = http.post("/v1/completions", json={"prompt": ["a", "b"], "max_tokens": 2})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt"


def _totals(http: httpx.Client) -> tuple[int, int]:
    replica = http.get("/prism/state").json()["replicas"][0]
    return replica["prompt_tokens_total"], replica["cached_tokens_total"]


def _settled_totals(http: httpx.Client) -> tuple[int, int]:
    """Totals that two snapshots of the replica agree on."""
    totals = _totals(http)
    while True:
        time.sleep(1.2)
        last, totals = totals, _totals(http)
        if last == totals:
            return totals


def _wait_for_totals(http: httpx.Client, prompt_tokens: int) -> tuple[int, int]:
    deadline = time.monotonic() + 10
    while (totals := _totals(http))[0] < prompt_tokens:
        assert time.monotonic() < deadline, totals
        time.sleep(0.1)
    return totals


class TestSampling:
    @pytest.mark.parametrize("n", [1, 2])
    def test_a_seed_is_taken(self, openai: OpenAI, n: int) -> None:
        # SGLang follows it only under enable_deterministic_inference, which it has for GPUs alone.
        answer = openai.chat.completions.create(**ASK, seed=11, n=n, **GO_ON)
        assert len(answer.choices) == n

    def test_stop_ends_the_answer_before_the_string(self, openai: OpenAI) -> None:
        # Hardly any forty tokens go without both letters.
        fields = ASK | {"max_tokens": 40, "stop": ["e", "a"], **GO_ON}
        choice = openai.chat.completions.create(**fields).choices[0]
        assert choice.finish_reason == "stop"
        # One token may hold both: SGLang cuts at the string that it found first, and names it.
        matched = (choice.model_extra or {})["matched_stop"]
        assert matched in {"e", "a"}
        assert matched not in (choice.message.content or "")

    def test_chat_logprobs_come_with_alternatives(self, openai: OpenAI) -> None:
        answer = openai.chat.completions.create(
            **ASK, logprobs=True, top_logprobs=2, temperature=0, **GO_ON
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert len(logprobs.content) == 8
        assert all(len(token.top_logprobs) == 2 for token in logprobs.content)
        assert all(token.logprob <= 0 for token in logprobs.content)

    def test_completion_logprobs_and_echo(self, openai: OpenAI) -> None:
        answer = openai.completions.create(
            model="tiny", prompt="Hello there", max_tokens=4, logprobs=2, echo=True, **GO_ON
        )
        assert answer.choices[0].text.startswith("Hello there")
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.top_logprobs


class TestStructuredOutput:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("n", [1, 2])
    def test_a_json_schema_shapes_every_choice(self, openai: OpenAI, n: int, stream: bool) -> None:
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        fields = ASK | {"n": n, "max_tokens": 60, "response_format": form}
        texts = [""] * n
        if stream:
            for chunk in openai.chat.completions.create(**fields, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
        else:
            for choice in openai.chat.completions.create(**fields).choices:
                texts[choice.index] = choice.message.content or ""
        for text in texts:
            answer = json.loads(text)
            assert set(answer) == {"ok", "kind"}

    def test_a_required_tool_shapes_the_answer(self, openai: OpenAI) -> None:
        fields: Any = ASK | {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200, "n": 4}
        # Random weights sometimes go on calling until their tokens are over.
        whole = [
            choice.message
            for choice in openai.chat.completions.create(**fields).choices
            if choice.finish_reason != "length"
        ]
        assert whole
        for message in whole:
            calls = _calls(message)
            assert calls
            assert all(name == "look_up" and set(args) == {"ok", "kind"} for name, args in calls)


def _calls(message: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments; without a tool parser for its model SGLang leaves the calls in the text."""
    if message.tool_calls:
        return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]
    return [(call["name"], call["parameters"]) for call in json.loads(message.content)]


class TestStreams:
    @pytest.mark.parametrize("asked", [True, False, None])
    def test_usage_comes_last_and_only_if_asked(self, openai: OpenAI, asked: bool | None) -> None:
        options: Any = {} if asked is None else {"stream_options": {"include_usage": asked}}
        chunks = list(openai.chat.completions.create(**ASK, stream=True, **options, **GO_ON))
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        assert len(usages) == (1 if asked else 0)
        if asked:
            assert chunks[-1].choices == []
            assert usages[0].completion_tokens == 8
