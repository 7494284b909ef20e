"""The client's ``prism`` fields: which exist, what they may hold, and how they are taken out again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prism_ray.prompt.errors import PromptError, expected
from prism_ray.prompt.limits import PromptLimits

_CHECKED_ELSEWHERE = ("deadline_s", "report")


@dataclass(frozen=True, slots=True)
class Mark:
    """A client's word that a text is a segment: its label, and whether it may be moved."""

    label: str
    reorderable: bool = False


@dataclass(frozen=True, slots=True)
class MarkedText:
    """One of a completion's segments."""

    text: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class CompletionFields:
    """``prism.system``, ``prism.segments`` (None: not a list) and ``prism.suffix``."""

    system: str = ""
    segments: tuple[MarkedText, ...] | None = None
    suffix: str = ""


def segments_off(body: Mapping[str, Any]) -> bool:
    """Check a chat body's own ``prism`` object; True if it says ``"segments": "off"``."""
    prism = _object(body, "prism", ("segments", *_CHECKED_ELSEWHERE))
    mode = prism.get("segments", "auto")
    if mode not in ("off", "auto"):
        raise expected("prism.segments", "'off' or 'auto'", mode)
    return bool(mode == "off")


def part_mark(part: Mapping[str, Any], path: str, limits: PromptLimits) -> Mark | None:
    """The ``prism`` object of one text part, or None. Raises PromptError with the field's path."""
    prism = _object(part, "prism", ("segment", "reorderable"), path)
    if not prism:
        return None
    mark = _mark(prism, "segment", f"{path}.prism", limits)
    check_segment_bytes(part["text"], f"{path}.text", limits)
    return mark


def refuse_prism(message: Mapping[str, Any], path: str) -> None:
    """PromptError if something that takes no ``prism`` object has one."""
    if "prism" in message:
        raise PromptError(400, f"{path}.prism", "only the body and text parts take prism fields")


def completion_fields(body: Mapping[str, Any], limits: PromptLimits) -> CompletionFields:
    """Check a completion body's ``prism`` object. Raises PromptError with the field's path."""
    prism = _object(body, "prism", ("system", "segments", "suffix", *_CHECKED_ELSEWHERE))
    listed = prism.get("segments", "auto")
    for name in ("system", "suffix"):
        if name in prism and not isinstance(prism[name], str):
            raise expected(f"prism.{name}", "a string", prism[name])
        if name in prism and not isinstance(listed, list):
            raise PromptError(400, f"prism.{name}", "goes with prism.segments as a list")
    if not isinstance(listed, list):
        if listed not in ("off", "auto"):
            raise expected("prism.segments", "'off', 'auto' or a list of segments", listed)
        return CompletionFields()
    check_segment_count(len(listed), "prism.segments", limits)
    segments = tuple(_listed(s, f"prism.segments[{i}]", limits) for i, s in enumerate(listed))
    return CompletionFields(prism.get("system", ""), segments, prism.get("suffix", ""))


def check_segment_count(count: int, path: str, limits: PromptLimits) -> None:
    if count > limits.segments:
        raise PromptError(400, path, f"{count} segments, at most {limits.segments} are allowed")


def check_segment_bytes(text: str, path: str, limits: PromptLimits) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > limits.segment_bytes:
        limit = limits.segment_bytes
        raise PromptError(400, path, f"a segment of {size} bytes, at most {limit} are allowed")


def strip_prism(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body as the engine may see it: no ``prism`` key on the body, a message or a part.

    What is unchanged is shared with ``body``, not copied.
    """
    clean = {key: value for key, value in body.items() if key != "prism"}
    if isinstance(clean.get("messages"), list):
        clean["messages"] = strip_messages(clean["messages"])
    return clean


def strip_messages(messages: Sequence[Any]) -> list[Any]:
    """``messages`` without their ``prism`` keys, sharing what is unchanged."""
    return [_strip_message(message) for message in messages]


def _strip_message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    clean = _without(message)
    content = clean.get("content")
    if isinstance(content, list) and any(isinstance(p, dict) and "prism" in p for p in content):
        clean = clean | {"content": [_without(p) for p in content]}
    return clean


def _without(value: Any) -> Any:
    if isinstance(value, dict) and "prism" in value:
        return {key: item for key, item in value.items() if key != "prism"}
    return value


def _listed(value: Any, path: str, limits: PromptLimits) -> MarkedText:
    if not isinstance(value, dict):
        raise expected(path, "an object", value)
    _refuse_unknown(value, ("label", "text", "reorderable"), path)
    mark = _mark(value, "label", path, limits)
    if not isinstance(value.get("text"), str):
        raise expected(f"{path}.text", "a string", value.get("text"))
    check_segment_bytes(value["text"], f"{path}.text", limits)
    return MarkedText(value["text"], mark)


def _mark(value: Mapping[str, Any], label_key: str, path: str, limits: PromptLimits) -> Mark:
    label = value.get(label_key)
    if not isinstance(label, str) or not 1 <= len(label) <= limits.label_chars:
        what = f"a string of 1..{limits.label_chars} characters"
        raise expected(f"{path}.{label_key}", what, label)
    reorderable = value.get("reorderable", False)
    if not isinstance(reorderable, bool):
        raise expected(f"{path}.reorderable", "true or false", reorderable)
    return Mark(label, reorderable)


def _object(
    owner: Mapping[str, Any], key: str, known: Sequence[str], path: str = ""
) -> Mapping[str, Any]:
    """``owner[key]`` as an object with only known keys; absent: empty."""
    where = f"{path}.{key}" if path else key
    value = owner.get(key, {})
    if not isinstance(value, dict):
        raise expected(where, "an object", value)
    _refuse_unknown(value, known, where)
    return value


def _refuse_unknown(value: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    for key in value:
        if key not in known:
            raise PromptError(400, f"{path}.{key}", f"unknown field; known: {', '.join(known)}")
