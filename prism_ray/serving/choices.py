"""One answer out of several: the engine's answers to a request's choices, merged into OpenAI objects.

Each choice is an engine request of its own with ``n`` 1. Knows no engine, no clock and no transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prism_ray.engine.base import Endpoint

Payload = dict[str, Any]

_ID_PREFIX: dict[Endpoint, str] = {"chat": "chatcmpl", "completions": "cmpl"}


def answer_id(endpoint: Endpoint, request_id: str) -> str:
    """The ``id`` of a request's answer; the engine's own ids never leave the replica."""
    return f"{_ID_PREFIX[endpoint]}-{request_id}"


def choice_count(body: Payload) -> int:
    """How many choices a body asks for."""
    return int(body.get("n") or 1)


def choice_body(body: Payload, index: int) -> Payload:
    """What the engine is asked for choice ``index``: one choice, with a seed of its own.

    A seeded request must be repeatable and its choices must differ: choice i gets ``seed`` + i.
    Streams of several choices always carry usage, which is added up here.
    """
    count = choice_count(body)
    if count == 1:
        return body
    single = body | {"n": 1}
    if body.get("seed") is not None:
        single["seed"] = body["seed"] + index
    if body.get("stream"):
        single["stream_options"] = (body.get("stream_options") or {}) | {"include_usage": True}
    return single


def merged_usage(usages: Sequence[Payload]) -> Payload:
    """Usage of all choices: the first one's prompt, everybody's output.

    The other choices find the whole prompt in the cache, which says nothing about this request.
    """
    first = usages[0]
    output = sum(usage.get("completion_tokens") or 0 for usage in usages)
    merged = first | {
        "completion_tokens": output,
        "total_tokens": (first.get("prompt_tokens") or 0) + output,
    }
    if isinstance(first.get("reasoning_tokens"), int):
        merged["reasoning_tokens"] = sum(usage.get("reasoning_tokens") or 0 for usage in usages)
    details = [usage.get("completion_tokens_details") for usage in usages]
    if any(details):
        names = {name for detail in details if detail for name in detail}
        merged["completion_tokens_details"] = {
            name: sum((detail or {}).get(name) or 0 for detail in details) for name in sorted(names)
        }
    return merged


class Merger:
    """Feeds on the payloads of all choices; says what the client gets, and when."""

    def __init__(self, endpoint: Endpoint, body: Payload, request_id: str) -> None:
        self._id = answer_id(endpoint, request_id)
        self._count = choice_count(body)
        self._stream = bool(body.get("stream"))
        self._wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._created: Any = None
        self._usages: dict[int, Payload] = {}
        self._wholes: dict[int, Payload] = {}
        self._usage_chunk: Payload | None = None

    def take(self, index: int, payload: Payload) -> Payload | None:
        """One payload of choice ``index``; what of it can go to the client now."""
        payload["id"] = self._id
        if self._count == 1:
            return payload
        if not self._stream:
            self._wholes[index] = payload
            return None
        if self._created is None:
            self._created = payload.get("created")
        payload["created"] = self._created
        usage = payload.get("usage")
        if usage is not None:
            self._usages[index] = usage
        if not payload.get("choices"):
            if self._usage_chunk is None or index == 0:
                self._usage_chunk = payload
            return None
        for choice in payload["choices"]:
            choice["index"] = index
        if not self._wants_usage:
            payload.pop("usage", None)
        elif usage is not None:
            payload["usage"] = self._usage()
        return payload

    def end(self) -> Payload | None:
        """All choices are complete: what is left to be sent, if anything."""
        if self._count == 1:
            return None
        if self._stream:
            if not self._wants_usage or self._usage_chunk is None:
                return None
            return self._usage_chunk | {"usage": self._usage()}
        ordered = [self._wholes[index] for index in sorted(self._wholes)]
        choices = [
            choice | {"index": index}
            for index, whole in sorted(self._wholes.items())
            for choice in whole["choices"]
        ]
        usages = [whole.get("usage") or {} for whole in ordered]
        return ordered[0] | {"choices": choices, "usage": merged_usage(usages)}

    def _usage(self) -> Payload:
        return merged_usage([self._usages[index] for index in sorted(self._usages)])
