"""Reads an OpenAI answer, whole or in chunks, into a row. Does no input or output, reads no clock."""

from __future__ import annotations

import json
from typing import Any

from loadgen.rows import Outcome, RequestRow

_CONTENT_FIELDS = ("content", "refusal")
_THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Older and newer name of one thing; a server that sends both sends the same text twice."""


class Answer:
    """Fills one row: ``chunk`` for each data event of a stream, ``whole`` for a plain answer.

    ``over`` is set when nothing more should be read: [DONE] came, or an error.
    """

    def __init__(self, row: RequestRow) -> None:
        self.row = row
        self.over = False

    def chunk(self, data: str, at_s: float) -> None:
        """One data event that arrived at ``at_s``."""
        if data.strip() == "[DONE]":
            self.row.outcome = Outcome.ANSWERED
            self.over = True
            return
        value = _json_object(data)
        if value is None:
            self._fail(Outcome.MALFORMED, f"data is no JSON object: {data[:200]}")
        elif value.get("error"):
            self._fail(Outcome.STREAM_ERROR, None)
            self.error(value)
        else:
            self._facts(value)
            if text := _text(value, "delta"):
                self.row.text += text
                self.row.chunk_s.append(at_s)

    def end_of_stream(self) -> None:
        """The stream ended in good order, but a good end is [DONE]."""
        if not self.over:
            self._fail(Outcome.TRUNCATED, "the stream ended without [DONE]")

    def whole(self, body: str) -> None:
        """The body of an answer that was not streamed."""
        value = _json_object(body)
        if value is None or not isinstance(value.get("choices"), list):
            self._fail(Outcome.MALFORMED, f"no OpenAI answer: {body[:200]}")
            return
        self._facts(value)
        self.row.text = _text(value, "message")
        self.row.outcome = Outcome.ANSWERED

    def error(self, value: Any) -> None:
        """An OpenAI error body, or whatever came in its place."""
        error = value.get("error", value) if isinstance(value, dict) else value
        if isinstance(error, dict):
            code, kind = error.get("code"), error.get("type")
            self.row.error_code = str(code if code is not None else kind) if code or kind else None
            self.row.error_message = str(error.get("message", error))[:500]
        else:
            self.row.error_message = str(error)[:500]

    def _fail(self, outcome: Outcome, message: str | None) -> None:
        self.row.outcome = outcome
        self.row.error_message = message
        self.over = True

    def _facts(self, value: dict[str, Any]) -> None:
        """Usage, report and finish reason, wherever they come."""
        usage = value.get("usage")
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self.row.prompt_tokens = _count(usage.get("prompt_tokens"), self.row.prompt_tokens)
            self.row.output_tokens = _count(usage.get("completion_tokens"), self.row.output_tokens)
            self.row.cached_tokens = _count(cached, self.row.cached_tokens)
        report = value.get("prism")
        if isinstance(report, dict):
            self.row.prism = {**(self.row.prism or {}), **report}
            self.row.replica = self.row.replica or _string(report.get("replica"))
            self.row.lane = self.row.lane or _string(report.get("lane"))
        for choice in _choices(value):
            self.row.finish_reason = _string(choice.get("finish_reason")) or self.row.finish_reason


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _choices(value: dict[str, Any]) -> list[dict[str, Any]]:
    choices = value.get("choices")
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


def _text(value: dict[str, Any], part: str) -> str:
    """What the model wrote in a chat ``delta`` or ``message``, or in a completion's ``text``."""
    words: list[str] = []
    for choice in _choices(value):
        said = choice.get(part)
        fields = [said.get(name) for name in _CONTENT_FIELDS] if isinstance(said, dict) else []
        thoughts = [said.get(name) for name in _THOUGHT_FIELDS] if isinstance(said, dict) else []
        thought = next((t for t in thoughts if t), None)
        words += [w for w in (*fields, thought, choice.get("text")) if isinstance(w, str)]
        if isinstance(said, dict) and said.get("tool_calls"):
            words.append(json.dumps(said["tool_calls"], ensure_ascii=False))
    return "".join(words)


def _count(value: object, otherwise: int | None) -> int | None:
    return value if type(value) is int else otherwise


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
