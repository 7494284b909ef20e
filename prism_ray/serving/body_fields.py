"""Which top-level fields of a body reach the engine, which a client may not set, and the JSON itself.

An allow-list: a field that nobody thought of is accepted, as OpenAI's servers do, and dropped. What
values the allowed fields may hold is checked in ``openai_body`` and by the engine.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from prism_ray.engine.base import Endpoint
from prism_ray.serving.errors import bad_request


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING = _names(
    "model stream stream_options n max_tokens temperature top_p top_k min_p min_tokens "
    "frequency_penalty presence_penalty repetition_penalty logit_bias seed stop stop_token_ids "
    "no_stop_trim ignore_eos skip_special_tokens logprobs response_format regex ebnf "
    "user"
)

ALLOWED: dict[Endpoint, frozenset[str]] = {
    "chat": _SAMPLING
    | _names(
        "messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls "
        "reasoning reasoning_effort separate_reasoning stream_reasoning chat_template_kwargs "
        "continue_final_message"
    ),
    "completions": _SAMPLING | _names("prompt echo suffix best_of json_schema"),
}
"""Fields that are passed on to the engine; ``prism`` and ``cache_salt`` are read at the ingress."""

REFUSED = _names(
    "rid kv_hints priority extra_key input_ids input_embeds custom_logit_processor custom_params "
    "routed_dp_rank data_parallel_rank disagg_prefill_dp_rank session_params session_id lora_path "
    "return_hidden_states return_routed_experts routed_experts_start_len watermark custom_labels "
    "images_config video_config mm_processor_kwargs max_dynamic_patch min_dynamic_patch "
    "use_audio_in_video stop_regex"
)
"""Engine internals: they would change scheduling, the cache, or what others get."""

_REFUSED_PREFIX = "bootstrap_"
_LONG_NUMBER = re.compile(rb"\d{19}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(raw: bytes, depth: int) -> Any:
    """The JSON of a body. ApiError 400 for what is none, nested deeper than ``depth``, no number of
    JSON (NaN, 1e999) or one beyond 64 bits, or no text (a lone surrogate)."""
    try:
        value = json.loads(raw, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise bad_request(f"the body is nested deeper than {depth} levels") from None
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None
    if raw.count(b"[") + raw.count(b"{") > depth:  # otherwise it cannot be deeper
        _check_depth(value, depth)
    if _LONG_NUMBER.search(raw):
        _check_numbers(value)
    if _SURROGATE.search(raw):
        _check_text(value)
    return value


def checked_fields(endpoint: Endpoint, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the engine and the splitter may see. ApiError 400 names an engine internal."""
    for name in body:
        internal = name in REFUSED or name.startswith(_REFUSED_PREFIX)
        if internal and body[name] is not None:
            raise bad_request(f"{name}: engine internals cannot be set by clients", name)
    allowed = ALLOWED[endpoint]
    return {name: v for name, v in body.items() if name in allowed or name == "prism"}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:32]} is too large a number")
    return number


def _check_depth(value: Any, depth: int) -> None:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise bad_request(f"the body is nested deeper than {depth} levels")


def _check_numbers(value: Any) -> None:
    """Whole numbers beyond 64 bits: no engine takes them, and they cannot be sent to one."""
    level = [value]
    while level:
        if any(isinstance(item, int) and not -(2**63) <= item < 2**64 for item in level):
            raise bad_request("the body has a whole number of more than 64 bits")
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]


def _check_text(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = text[error.start]
        raise bad_request(f"not valid Unicode: a lone surrogate {surrogate!a}") from None
