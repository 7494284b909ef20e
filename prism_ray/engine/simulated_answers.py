"""OpenAI bodies of the simulated engine: what a request asks for, and filler text; no engine.

The text depends on the prompt's tokens alone, so the same prompt gets the same answer whatever it
was batched with, and however much of it was cached.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from prism_ray.engine.base import EngineCall, EngineRefused, ResponseChunk

COMPLETIONS_MAX_TOKENS = 16
"""OpenAI's default of ``max_tokens`` for completions."""

_TEXT = (
    "the cache keeps what many prompts share and lets go what few will ask again so a queue in good "
    "order finds its prefix warm while tokens wait for their turn on a busy engine that reads once "
    "and answers often every page has an owner each batch a plan no request is lost"
)
_WORDS = tuple(_TEXT.split())


class Filler:
    """An endless deterministic text, one word a token, drawn from a digest of the prompt."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    def word(self, index: int) -> str:
        """Token ``index`` of the answer."""
        digest = hashlib.blake2b(
            index.to_bytes(8, "big"), digest_size=2, key=self._seed[:64]
        ).digest()
        word = _WORDS[int.from_bytes(digest, "big") % len(_WORDS)]
        return word if index == 0 else " " + word

    def text(self, tokens: int) -> str:
        """The first ``tokens`` tokens."""
        return "".join(self.word(index) for index in range(tokens))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks of the engine. ``output_tokens`` will be generated, ``max_new_tokens`` is the
    limit; they differ where a chat names no limit and the answer ends by itself."""

    chat: bool
    stream: bool
    include_usage: bool
    output_tokens: int
    max_new_tokens: int

    @property
    def finish_reason(self) -> str:
        return "length" if self.output_tokens == self.max_new_tokens else "stop"


def refused(message: str, param: str | None = None, code: str | None = None) -> EngineRefused:
    """A 400 with OpenAI's error body."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return EngineRefused(400, {"error": error})


def read_body(call: EngineCall, *, chat_output_tokens: int, room_tokens: int) -> Asked:
    """Check a body. ``room_tokens`` is what context and pool leave for output. Raises EngineRefused."""
    body = call.body
    if body.get("n") not in (None, 1):
        raise refused("n above 1 is not supported by this engine", "n")
    if not call.prompt_ids:
        raise refused("the prompt is empty", "prompt" if call.endpoint == "completions" else None)
    stream = body.get("stream") or False
    options = body.get("stream_options") or {}
    if not isinstance(stream, bool):
        raise refused("stream must be true or false", "stream")
    if not isinstance(options, dict):
        raise refused("stream_options must be an object", "stream_options")
    chat = call.endpoint == "chat"
    limit = _limit(body, ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",))
    if limit is None and not chat:
        limit = COMPLETIONS_MAX_TOKENS
    if (limit or 1) > room_tokens:
        raise refused(
            f"{len(call.prompt_ids)} prompt tokens and {limit or 1} new ones exceed what this engine "
            f"can hold by {(limit or 1) - room_tokens}",
            "max_tokens" if room_tokens > 0 else None,
            "context_length_exceeded",
        )
    natural = min(chat_output_tokens, room_tokens)
    output = limit if limit is not None else natural
    max_new = limit if limit is not None else room_tokens
    return Asked(chat, stream, bool(options.get("include_usage")), output, max_new)


def _limit(body: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise refused(f"{name} must be a whole number of at least 1", name)
        return value
    return None


class Answer:
    """The OpenAI objects of one answer, fed token by token.

    ``token`` and ``end`` return what can be sent now: a stream gets each token at once, a plain answer
    is one object at the end. ``created`` is Unix seconds, for the field of that name only.
    """

    def __init__(
        self, call: EngineCall, asked: Asked, *, model: str, created: int, seed: bytes
    ) -> None:
        prefix = "chatcmpl" if asked.chat else "cmpl"
        kind = "chat.completion" if asked.chat else "text_completion"
        if asked.chat and asked.stream:
            kind = "chat.completion.chunk"
        self._asked = asked
        self._head = {
            "id": f"{prefix}-{call.request_id}",
            "object": kind,
            "created": created,
            "model": model,
        }
        self._filler = Filler(seed)
        self.prompt_tokens = len(call.prompt_ids)
        self.cached_tokens = 0
        self.output_tokens = 0

    def token(self) -> list[ResponseChunk]:
        """One more token was generated."""
        word = self._filler.word(self.output_tokens)
        self.output_tokens += 1
        if not self._asked.stream:
            return []
        if not self._asked.chat:
            return [self._chunk({"text": word}, tokens=1)]
        first = self.output_tokens == 1
        opening = [self._chunk({"delta": {"role": "assistant", "content": ""}})] if first else []
        return [*opening, self._chunk({"delta": {"content": word}}, tokens=1)]

    def end(self, finish_reason: str) -> list[ResponseChunk]:
        """Nothing more will be generated."""
        if not self._asked.stream:
            return [self._whole(finish_reason)]
        nothing: dict[str, Any] = {"delta": {}} if self._asked.chat else {"text": ""}
        chunks = [self._chunk(nothing, finish_reason=finish_reason)]
        if self._asked.include_usage:
            chunks.append(ResponseChunk({**self._head, "choices": [], "usage": self._usage()}))
        return chunks

    def _chunk(
        self, content: dict[str, Any], *, finish_reason: str | None = None, tokens: int = 0
    ) -> ResponseChunk:
        payload = {**self._head, "choices": [self._choice(content, finish_reason)]}
        if self._asked.include_usage:
            payload["usage"] = None
        return ResponseChunk(payload, tokens)

    def _whole(self, finish_reason: str) -> ResponseChunk:
        text = self._filler.text(self.output_tokens)
        message = {"role": "assistant", "content": text}
        content: dict[str, Any] = {"message": message} if self._asked.chat else {"text": text}
        choices = [self._choice(content, finish_reason)]
        payload = {**self._head, "choices": choices, "usage": self._usage()}
        return ResponseChunk(payload, self.output_tokens)

    @staticmethod
    def _choice(content: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
