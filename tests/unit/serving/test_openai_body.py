"""The outer shape of bodies: what passes, what is refused, and by which path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.config import PrismConfig
from prism_ray.engine.base import Endpoint
from prism_ray.serving.body_fields import ALLOWED, REFUSED, checked_fields, parse_json
from prism_ray.serving.errors import ApiError
from prism_ray.serving.openai_body import check_shape, header_deadline_s
from prism_ray.serving.preparation import Preparation

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"prompt": "Hi"}
CONTEXT_TOKENS, POOL_TOKENS = 4096, 8192


@pytest.fixture(scope="module")
def preparation() -> Preparation:
    config = PrismConfig.load({"extends": "simulated"})
    return Preparation(config, b"secret", lambda: (CONTEXT_TOKENS, POOL_TOKENS))


def refusal(endpoint: Endpoint, body: Any) -> dict[str, Any]:
    with pytest.raises(ApiError) as error:
        check_shape(endpoint, body)
    assert error.value.status == 400
    found: dict[str, Any] = error.value.body["error"]
    return found


class TestShape:
    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"stop": ["a"] * 17}, "stop"),
            ({"stop": [1]}, "stop"),
            ({"stop": 1}, "stop"),
            ({"stop": {}}, "stop"),
            ({"stop": {"str": 1, "list[str]": [1]}}, "stop"),
            ({"prism": {"x": 1}}, "prism.x"),
            ({"prism": 1}, "prism"),
            ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
            ({"messages": [{}, 1]}, "messages[1]"),
            ({"seed": 2**63}, "seed"),
            ({"n": True}, "n"),
            ({"n": 1.5}, "n"),
            ({"temperature": "1"}, "temperature"),
            ({"logprobs": 1}, "logprobs"),
            ({"top_logprobs": 21}, "top_logprobs"),
        ],
    )
    def test_a_refusal_names_a_path_of_the_body(self, more: Any, param: str) -> None:
        error = refusal("chat", CHAT | more)
        assert error["param"] == param
        assert error["message"].startswith(f"{param}: ")
        assert error["code"] is None

    def test_what_is_missing_is_named(self) -> None:
        assert refusal("chat", {})["param"] == "messages"

    def test_a_list_or_text_is_no_body(self) -> None:
        for body in ([], "x", 1, None):
            assert "expected a JSON object" in refusal("chat", body)["message"]

    def test_a_whole_temperature_is_a_number(self) -> None:
        assert check_shape("chat", CHAT | {"temperature": 1}).temperature == 1

    @pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "86401", "1e9"])
    def test_a_deadline_header_that_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(ApiError):
            header_deadline_s({"x-prism-deadline-s": text})

    def test_a_deadline_header_is_seconds(self) -> None:
        assert header_deadline_s({"x-prism-deadline-s": "2.5"}) == 2.5
        assert header_deadline_s({}) is None


class TestFields:
    @pytest.mark.parametrize("endpoint", ["chat", "completions"])
    def test_only_allowed_fields_pass(self, endpoint: Endpoint) -> None:
        body = dict.fromkeys([*ALLOWED[endpoint], "prism", "cache_salt", "metadata", "nonsense"], 1)
        assert set(checked_fields(endpoint, body)) == ALLOWED[endpoint] | {"prism"}

    @pytest.mark.parametrize("name", [*sorted(REFUSED), "bootstrap_anything"])
    def test_an_engine_internal_is_refused_unless_it_is_null(self, name: str) -> None:
        with pytest.raises(ApiError) as error:
            checked_fields("chat", {name: 0})
        assert error.value.body["error"]["param"] == name
        assert checked_fields("chat", {name: None}) == {}

    def test_nothing_is_both_allowed_and_refused(self) -> None:
        assert not REFUSED & (ALLOWED["chat"] | ALLOWED["completions"])

    def test_the_engine_sees_no_unknown_field(self, preparation: Preparation) -> None:
        body = CHAT | {"metadata": {"a": 1}, "temperature": 0.5, "cache_salt": "x", "prism": {}}
        request = preparation.inference("chat", json.dumps(body).encode(), {}, "default", 0.0)
        written = request.prompt.assemble(request.prompt.skeleton.native_order).body
        assert set(written) == {"messages", "model", "temperature"}

    def test_the_engine_answers_under_the_served_name(self, preparation: Preparation) -> None:
        for more in ({}, {"model": None}, {"model": "simulated"}):
            raw = json.dumps(CHAT | more).encode()
            request = preparation.inference("chat", raw, {}, "default", 0.0)
            written = request.prompt.assemble(request.prompt.skeleton.native_order).body
            assert written["model"] == "simulated"


_KEYS = st.text(max_size=4) | st.sampled_from(
    [
        *sorted(ALLOWED["chat"] | ALLOWED["completions"] | {"prism", "cache_salt", "rid"}),
        *(
            [
                "role",
                "content",
                "type",
                "text",
                "name",
                "tool_calls",
                "function",
                "arguments",
                "parameters",
            ]
        ),
        *(
            [
                "segment",
                "label",
                "segments",
                "system",
                "suffix",
                "deadline_s",
                "report",
                "reorderable",
            ]
        ),
    ]
)

_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"])},
        optional={
            "content": st.text(max_size=8)
            | st.none()
            | st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["text", "image_url", "thinking"])},
                    optional={
                        "text": st.text(max_size=8),
                        "prism": st.dictionaries(_KEYS, st.text(max_size=3) | st.booleans()),
                    },
                ),
                max_size=3,
            ),
            "tool_calls": st.lists(st.dictionaries(_KEYS, st.text(max_size=4)), max_size=2),
            "name": st.text(max_size=4) | st.integers(),
        },
    ),
    max_size=3,
)

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=8,
)

_BODIES = st.dictionaries(_KEYS, _VALUES | _MESSAGES, max_size=6) | _VALUES


class TestPreparation:
    def test_tenants_and_salts_part_identities(self, preparation: Preparation) -> None:
        def of(tenant: str, salt: str | None) -> tuple[Any, str]:
            text = "A long text. " * 30
            body = {"prompt": None, "cache_salt": salt}
            body |= {"prism": {"segments": [{"label": "a", "text": text}], "suffix": "?"}}
            raw = json.dumps(body).encode()
            request = preparation.inference("completions", raw, {}, tenant, 0.0)
            return request.prompt.skeleton.segments[0].id, request.cache_salt

        asked = [("a", None), ("a", "x"), ("a", "y"), ("b", None), ("b", "x"), ("ax", None)]
        assert len({of(*pair)[0] for pair in asked}) == len(asked)
        assert len({of(*pair)[1] for pair in asked}) == len(asked)
        assert of("a", "x") == of("a", "x")

    def test_the_bodys_deadline_wins_over_the_header(self, preparation: Preparation) -> None:
        def deadline(body: dict[str, Any], headers: dict[str, str]) -> float | None:
            raw = json.dumps(body).encode()
            return preparation.inference("chat", raw, headers, "default", 100.0).deadline_s

        header = {"x-prism-deadline-s": "2"}
        assert deadline(CHAT, {}) is None
        assert deadline(CHAT, header) == 102.0
        assert deadline(CHAT | {"prism": {"deadline_s": 5}}, header) == 105.0

    @settings(max_examples=400, deadline=None)
    @given(body=_BODIES)
    def test_any_json_is_prepared_or_refused_in_the_openai_body(
        self, preparation: Preparation, body: Any
    ) -> None:
        for endpoint, base in (("chat", CHAT), ("completions", COMPLETION)):
            for asked in (body, base | body if isinstance(body, dict) else body):
                raw = json.dumps(asked).encode()
                _prepared_or_refused(preparation, endpoint, raw)

    @settings(max_examples=200, deadline=None)
    @given(raw=st.binary(max_size=64))
    def test_any_bytes_are_refused(self, preparation: Preparation, raw: bytes) -> None:
        with pytest.raises(ApiError) as error:
            preparation.inference("chat", raw, {}, "default", 0.0)
        _is_the_openai_body(error.value)


def _prepared_or_refused(preparation: Preparation, endpoint: Any, raw: bytes) -> None:
    try:
        request = preparation.inference(endpoint, raw, {}, "default", 0.0)
    except ApiError as error:
        _is_the_openai_body(error)
        return
    skeleton, written = request.prompt.skeleton, request.prompt.assemble()
    assert len(written.prompt_ids) == skeleton.prompt_tokens > 0
    assert set(written.body) <= ALLOWED[endpoint]
    assert skeleton.prompt_tokens + request.max_new_tokens <= CONTEXT_TOKENS


def _is_the_openai_body(error: ApiError) -> None:
    assert 400 <= error.status < 500
    assert set(error.body["error"]) == {"message", "type", "param", "code"}
    json.dumps(error.body, ensure_ascii=False).encode()


class TestJson:
    def test_depth_counts_objects_and_lists(self) -> None:
        for raw in (b"[[[]]]", b'{"a": {"b": {}}}', b'{"a": [{"b": 1}]}', b'["[[[["]'):
            assert parse_json(raw, 3) == json.loads(raw)
        for raw in (b"[[[[]]]]", b'{"a": [{"b": {}}]}'):
            with pytest.raises(ApiError, match="deeper than 3"):
                parse_json(raw, 3)

    def test_whole_numbers_beyond_64_bits_are_refused(self) -> None:
        fits = {"a": [-(2**63), 2**64 - 1, "9" * 40], "b": {"c": 10**18}}
        assert parse_json(json.dumps(fits).encode(), 5) == fits
        for wrong in ({"a": 2**64}, {"a": [{"b": [-(2**63) - 1]}]}, 10**40):
            with pytest.raises(ApiError, match="64 bits"):
                parse_json(json.dumps(wrong).encode(), 5)

    def test_pairs_of_surrogates_are_text(self) -> None:
        assert parse_json(b'"\\ud83d\\ude00"', 3) == "\N{GRINNING FACE}"
        with pytest.raises(ApiError, match="lone surrogate"):
            parse_json(b'{"a": "\\udc00"}', 3)
