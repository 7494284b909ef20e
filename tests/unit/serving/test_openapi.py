"""The published schema describes what is really taken and answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from prism_ray.policies import POLICIES
from prism_ray.prompt.content_format import ContentFormat
from prism_ray.prompt.conversation import Conversation
from prism_ray.prompt.limits import PromptLimits
from prism_ray.serving.openai_body import check_shape
from prism_ray.serving.openapi import published_schema

from .actor_bench import Bench, hello, settle, ticket

SCHEMAS: dict[str, Any] = published_schema()["components"]["schemas"]


def problems(name: str, value: Any) -> list[str]:
    """What a schema of the published ones says against a value, and what it does not know of it."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}}
    found = [error.message for error in Draft202012Validator(schema).iter_errors(value)]
    return [*found, *unknown(SCHEMAS[name], value, name)]


def unknown(schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
    """Keys that the schema does not name."""
    schema = next((one for one in schema.get("anyOf", ()) if _is_of(one, value)), schema)
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list):
        for item in value:
            yield from unknown(schema["items"], item, f"{path}[]")
    if isinstance(value, dict):
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if inner is None:
                yield f"{path}.{key} is not described"
            else:
                yield from unknown(inner, item, f"{path}.{key}")


def _is_of(schema: dict[str, Any], value: Any) -> bool:
    return Draft202012Validator(schema).is_valid(value) if "$ref" not in schema else False


class TestState:
    @pytest.mark.parametrize("policy", sorted(POLICIES))
    async def test_the_state_under_every_policy_is_as_described(self, policy: str) -> None:
        placement = {"policy": "e2" if policy == "prism" else "single"}
        scheduler = {"policy": policy, "round_interval_s": 0.0}
        count = {"count": 2 if policy == "prism" else 1}
        async with Bench(scheduler=scheduler, placement=placement, replicas=count) as bench:
            assert problems("State", json.loads(json.dumps(await bench.actor.state()))) == []
            await bench.actor.hello(hello("replica-1"))
            await bench.submit("shared-1")
            await bench.report("replica-1", "shared-1", snapshot=True)
            bench.actor._telemetry.look(bench.now)
            waiting = [bench.submit(f"shared-{n}") for n in range(2, 30)]
            await settle()
            state = json.loads(json.dumps(await bench.actor.state()))
            why = json.loads(json.dumps(await bench.actor.explain("shared-1")))
            for call in waiting:
                call.cancel()
        assert state["waiting"]
        assert state["decisions"]
        assert problems("State", state) == []
        assert problems("Explained", why) == []

    async def test_of_several_tenants_too(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            for number in range(2):
                await bench.actor.submit(
                    replace(ticket(f"{number}"), tenant=b"%d" % number), 0.0, None, False
                )
            state = json.loads(json.dumps(await bench.actor.state()))
        assert state["window"]["tenants"] == 2
        assert problems("State", state) == []

    def test_what_is_not_described_is_found(self) -> None:
        assert problems("Step", {"odd": 1})[-1] == "Step.odd is not described"


class TestMessages:
    @pytest.mark.parametrize(
        "message",
        [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"up": 1}'},
                    }
                ],
            },
            {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": []},
            {"role": "tool", "tool_call_id": "call_1", "content": "found"},
        ],
    )
    def test_what_is_described_is_taken(self, message: dict[str, Any]) -> None:
        body = {"model": "m", "messages": [message]}
        assert problems("ChatBody", body) == []
        check_shape("chat", body)
        Conversation(body, ContentFormat.STRING, PromptLimits(), {})
