"""OpenAI bodies around SGLang, as plain data: errors, stream framing, and how tokens are counted.

Pure functions shared by the replica and the engine's process; nothing here imports SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from prism_ray.engine.base import EngineCall, EngineRefused


def openai_error(message: str, status: int, param: str | None = None) -> dict[str, Any]:
    """The body of an OpenAI error. Its ``code`` is null: only errors of ours have names of their own."""
    kind = "invalid_request_error" if status < 500 else "internal_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def nested_error(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """SGLang's flat error body, or one that is nested already, in OpenAI's shape."""
    error = body.get("error", body)
    if not isinstance(error, Mapping):
        error = {"message": str(error)}
    return openai_error(
        str(error.get("message") or "refused by the engine"),
        status,
        error.get("param"),
    )


def check_call(call: EngineCall) -> None:
    """Raise EngineRefused (400) for what no SGLang engine of ours takes."""
    choices = call.body.get("n")
    if choices not in (None, 1):
        raise EngineRefused(
            400, openai_error("n above 1 is not supported by this engine", 400, param="n")
        )
    prompt = call.body.get("prompt")
    if isinstance(prompt, list) and any(not isinstance(item, int) for item in prompt):
        raise EngineRefused(
            400, openai_error("one prompt a request, not a list", 400, param="prompt")
        )
    if not call.prompt_ids:
        raise EngineRefused(400, openai_error("the prompt is empty", 400, param="prompt"))


def field_path(location: Sequence[int | str]) -> str:
    """Where in the body pydantic found a problem, without the names of the types it tried."""
    return ".".join(
        str(step) for step in location if isinstance(step, int) or re.fullmatch("[a-z_]+", step)
    )


def stream_payload(part: str | bytes) -> bytes | None:
    """The JSON inside one server-sent event of SGLang's; None for ``[DONE]`` and empty ones."""
    data = part.encode() if isinstance(part, str) else part
    data = data.strip().removeprefix(b"data:").strip()
    return None if data in (b"", b"[DONE]") else data


def error_status(payload: Mapping[str, Any]) -> int | None:
    """The HTTP status of a payload that is an error; None for an answer."""
    error = payload.get("error")
    if not isinstance(error, Mapping):
        return None
    code = error.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 500


class TokenCounter:
    """Says how many new output tokens a chunk carries, from SGLang's running total.

    A chunk without output (the opening one with the role) carries none, although the engine has
    produced the first token when it is sent: that token counts with the chunk that holds its text.
    """

    def __init__(self) -> None:
        self._counted = 0

    def take(self, payload: Mapping[str, Any], total: int) -> int:
        """Tokens that arrive with ``payload``; ``total``: output tokens of the request so far."""
        if not any(_carries_output(choice) for choice in payload.get("choices", ())):
            return 0
        new, self._counted = total - self._counted, total
        return new


def _carries_output(choice: Mapping[str, Any]) -> bool:
    if choice.get("finish_reason") or choice.get("text") or "message" in choice:
        return True
    delta = choice.get("delta") or {}
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))
