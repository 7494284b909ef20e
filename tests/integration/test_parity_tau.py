"""Real agent conversations have the token ids that SGLang's own server gives them, tools included.

Airline: the turns of tau-bench's recorded runs. Retail: the policy and the openings of tau2-bench's
tasks, since no runs of it are recorded there. Tool schemas are tau2-bench's. A sample of 60;
``PRISM_SOAK=1`` takes 500.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prism_ray.prompt import PromptLimits, Splitter, load_tokenizer

from .prompt.oracle_process import OracleProcess, start_oracle

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("PRISM_SHARED_DATA", ROOT.parent / "shared" / "data"))
MODELS = Path(os.environ.get("PRISM_MODELS_DIR", ROOT / "models"))
TOKENIZERS = {
    "qwen3": DATA / "tokenizer-qwen3",
    "smollm2": MODELS / "SmolLM2-135M-Instruct",
}
RUNS = DATA / "tau-bench" / "historical_trajectories" / "gpt-4o-airline.json"
TAU2 = DATA / "tau2-bench"
REQUESTS = 500 if os.environ.get("PRISM_SOAK") == "1" else 60
RETAIL_SHARE = 0.2

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is missing"),
    pytest.mark.skipif(not RUNS.is_file() or not TAU2.is_dir(), reason="no tau-bench data"),
]


def tools_of(domain: str) -> list[dict[str, Any]]:
    """A domain's tools as OpenAI functions."""
    path = TAU2 / "web" / "leaderboard" / "public" / "task-data" / "tools-data.json"
    tools = json.loads(path.read_text())[domain]["tools"]
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    fields = {
        p["name"]: {"type": p["type"], "description": p["description"]} for p in tool["parameters"]
    }
    required = [p["name"] for p in tool["parameters"] if p["required"]]
    schema = {"type": "object", "properties": fields, "required": required}
    return {"name": tool["name"], "description": tool["description"], "parameters": schema}


def airline_turns() -> list[dict[str, Any]]:
    """One request per assistant turn of every recorded run."""
    tools = tools_of("airline")
    return [
        {"messages": run["traj"][:turn], "tools": tools}
        for run in json.loads(RUNS.read_text())
        for turn, message in enumerate(run["traj"])
        if message["role"] == "assistant"
    ]


def retail_openings() -> list[dict[str, Any]]:
    policy = (TAU2 / "retail" / "policy.md").read_text()
    tools = tools_of("retail")
    tasks = json.loads((TAU2 / "retail" / "tasks.json").read_text())
    return [
        {
            "messages": [
                {"role": "system", "content": policy},
                {
                    "role": "user",
                    "content": task["user_scenario"]["instructions"]["reason_for_call"],
                },
            ],
            "tools": tools,
        }
        for task in tasks
    ]


def evenly(requests: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """``count`` of them, from everywhere in the list."""
    return [requests[i * len(requests) // count] for i in range(min(count, len(requests)))]


@pytest.fixture(scope="module")
def oracle() -> Iterator[OracleProcess]:
    yield from start_oracle()


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    retail = evenly(retail_openings(), int(REQUESTS * RETAIL_SHARE))
    return retail + evenly(airline_turns(), REQUESTS - len(retail))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_real_conversations_have_sglangs_ids(
    name: str, oracle: OracleProcess, requests: list[dict[str, Any]]
) -> None:
    path = TOKENIZERS[name]
    if not (path / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizer {name}")
    splitter = Splitter(load_tokenizer(path), PromptLimits(), b"secret")
    segments = 0
    for body in requests:
        expected = oracle.ask(path, {"model": "model", **body})
        prepared = splitter.chat({"model": "model", **body}, b"t")
        segments += len(prepared.skeleton.segments)
        assert prepared.assemble().prompt_ids == expected["ids"], body["messages"][-1]
        assert prepared.skeleton.prompt_tokens == len(expected["ids"])
    assert len(requests) == REQUESTS
    assert segments > len(requests), "tools and earlier turns must have become segments"


def test_the_sample_has_tool_calls_and_tool_answers(requests: list[dict[str, Any]]) -> None:
    roles = {m["role"] for body in requests for m in body["messages"]}
    assert roles >= {"system", "user", "assistant", "tool"}
    assert any(m.get("tool_calls") for body in requests for m in body["messages"])
