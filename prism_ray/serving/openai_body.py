"""The outer shape of OpenAI bodies: types and ranges that are wrong whatever the engine.

What is model-specific (tools, templates, sampling extensions) is left to the engine. The body itself
is passed on as it came; this only refuses it early, with the path and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from prism_ray.engine.base import Endpoint
from prism_ray.serving.errors import ApiError, bad_request

Probability = Annotated[float, Field(gt=0, le=1)]
DeadlineSeconds = Annotated[float, Field(gt=0, le=86_400)]
Penalty = Annotated[float, Field(ge=-2, le=2)]

STOPS_MAX = 16
"""Most stop sequences of one request."""

_UNIONS = ("stop", "prompt")
"""Fields of which no arm is an object: a key inside one that is called as an arm is still no path."""

_DEADLINE: TypeAdapter[float] = TypeAdapter(DeadlineSeconds)
DEADLINE_HEADER = "x-prism-deadline-s"


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    include_usage: bool | None = Field(None, description="A last chunk with `usage`.")


class PrismRequest(BaseModel):
    """``prism`` keys of a request as a whole; those inside messages are checked where they are read."""

    model_config = ConfigDict(extra="forbid", strict=True)
    segments: Any = None
    system: Any = None
    suffix: Any = None
    report: bool = Field(False, description="A `prism` object in the answer (below).")
    deadline_s: DeadlineSeconds | None = Field(
        None, description="Seconds that the request may wait to be dispatched; then 408."
    )


class CommonBody(BaseModel):
    """What both endpoints share. Unknown fields are accepted and not looked at."""

    model_config = ConfigDict(extra="ignore", strict=True)
    model: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="The served model's name (`GET /v1/models`); another one is 404."
    )
    stream: bool | None = Field(None, description="Server-sent events, a chunk each.")
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Choices; more than `limits.n` is 400."
    )
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Longest answer in tokens; default: `limits.default_max_tokens`."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(
        None, description="Of the sampling; choice i has `seed` + i."
    )
    stop: str | Annotated[list[str], Field(max_length=STOPS_MAX)] | None = None
    user: str | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = Field(
        None, description="Requests share cached prefixes only under an equal salt."
    )
    prism: PrismRequest | None = None


class ChatBody(CommonBody):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The newer name of `max_tokens`; wins over it."
    )
    tools: list[dict[str, Any]] | None = Field(
        None, description="Tool schemas: segments of the prompt that stay in their place."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class CompletionBody(CommonBody):
    prompt: str | list[str] | list[int] | list[list[int]] | None = Field(
        None, description="One prompt, as text or token ids; or `prism.segments` instead."
    )
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Literal[1] | None = None


def check_shape(endpoint: Endpoint, body: object) -> ChatBody | CompletionBody:
    """The typed view of a body. Raises ApiError 400 with the path of the first thing that is wrong."""
    if not isinstance(body, dict):
        raise bad_request(f"expected a JSON object, got {_kind(body)}")
    model = ChatBody if endpoint == "chat" else CompletionBody
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _refusal(error, body) from None


def output_limit(shape: ChatBody | CompletionBody, default: int) -> int:
    """Tokens that the client allows for the answer."""
    asked = shape.max_tokens
    if isinstance(shape, ChatBody) and shape.max_completion_tokens is not None:
        asked = shape.max_completion_tokens
    return default if asked is None else asked


def header_deadline_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a request may wait, as its header says. ApiError 400 for what is no such number."""
    text = headers.get(DEADLINE_HEADER)
    if text is None:
        return None
    try:
        return _DEADLINE.validate_python(float(text))
    except ValueError:  # pydantic's ValidationError is one
        message = f"{DEADLINE_HEADER}: expected seconds above 0, at most 86400"
        raise bad_request(message, DEADLINE_HEADER) from None


def _refusal(error: ValidationError, body: Mapping[str, Any]) -> ApiError:
    # A union reports each of its arms: a value of the right type tells more than a wrong type, and
    # the shortest path names the field that the client knows.
    problems = [(_path(e, body), e) for e in error.errors(include_url=False)]
    path, first = min(problems, key=lambda p: (p[1]["type"].endswith("_type"), len(p[0])))
    if first["type"] == "extra_forbidden":
        return bad_request(f"{path}: unknown field", path)
    got = "" if first["type"] == "missing" else f", got {_kind(first['input'])}"
    return bad_request(f"{path}: {first['msg']}{got}", path)


def _path(error: ErrorDetails, body: Any) -> str:
    """Where in the body; pydantic's location also names the arms of unions, which are no keys."""
    location = error["loc"]
    path, here = "", body
    for number, step in enumerate(location):
        if isinstance(here, dict) and isinstance(step, str):
            if location[0] in _UNIONS and number:
                continue
            if step in here or error["type"] == "missing":
                path, here = f"{path}.{step}", here.get(step)
        elif isinstance(here, list) and isinstance(step, int):
            path, here = f"{path}[{step}]", here[step]
    return path.lstrip(".")


def _kind(value: object) -> str:
    names = {
        bool: "a boolean",
        str: "a string",
        dict: "an object",
        list: "an array",
        type(None): "null",
    }
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)[:32]
    return names.get(type(value), type(value).__name__)
