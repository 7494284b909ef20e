"""The OpenAI objects that every arm of ``bench path`` answers, so that none has less to write."""

from __future__ import annotations

import json
from typing import Any

OUTPUT_TOKENS = 16
_WORD = " word"


def whole_answer(request_id: str) -> dict[str, Any]:
    """A chat completion of OUTPUT_TOKENS tokens."""
    message = {"role": "assistant", "content": _WORD * OUTPUT_TOKENS}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 300, "completion_tokens": OUTPUT_TOKENS, "total_tokens": 316}
    head = {"id": request_id, "object": "chat.completion", "created": 0, "model": "simulated"}
    return {**head, "choices": [choice], "usage": usage}


def streamed_answer(request_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The chunks of a streamed answer: those up to the first token, and the rest."""
    head = {"id": request_id, "object": "chat.completion.chunk", "created": 0, "model": "simulated"}

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**head, "choices": [choice]}

    first = [chunk({"role": "assistant", "content": ""}), chunk({"content": _WORD})]
    rest = [chunk({"content": _WORD}) for _ in range(OUTPUT_TOKENS - 1)]
    return first, [*rest, chunk({}, "length")]


def events(payloads: list[dict[str, Any]]) -> bytes:
    """Payloads as server-sent events."""
    return b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in payloads)
