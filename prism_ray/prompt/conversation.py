"""An OpenAI chat body as the chat template gets it, with every text at a place that can be rewritten.

Follows SGLang 0.5.23 (``OpenAIServingChat``) field by field, since the engine's own rendering of the
body must be the same text. Knows neither tokens nor segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prism_ray.prompt.content_format import ContentFormat
from prism_ray.prompt.errors import PromptError, expected
from prism_ray.prompt.fields import Mark, part_mark, refuse_prism
from prism_ray.prompt.limits import PromptLimits
from prism_ray.prompt.template_inputs import dump_tool_calls, dump_tools, template_kwargs

_GENERIC_ROLES = (
    "system",
    "assistant",
    "tool",
    "function",
    "developer",
    "latest_reminder",
    "root",
)
_SYSTEM_ROLES = ("system", "developer", "root")
_OPTIONAL_STRINGS = ("tool_call_id", "name", "phase", "reasoning_content")
_THINKING = ("thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class TextSite:
    """One text of the conversation: a message's string, or one text part of it (``part``)."""

    message: int
    part: int | None
    text: str
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: the fields that the template gets besides its content, and its text sites.

    ``content`` lists, in order, indexes into ``Conversation.sites``; None where the body has null.
    """

    role: str
    fields: Mapping[str, Any]
    content: tuple[int, ...] | None
    in_parts: bool
    only_text: bool = True


class Conversation:
    """A checked chat body; ``sites`` are its texts in reading order.

    ``messages(texts)`` gives the template's messages with ``texts`` at the sites, and
    ``tail(texts)`` the start of an answer that is to be continued, which follows the rendered text.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        form: ContentFormat,
        limits: PromptLimits,
        default_kwargs: Mapping[str, Any],
    ) -> None:
        raw = body.get("messages")
        if not isinstance(raw, list):
            raise expected("messages", "a list of messages", raw)
        if not raw:
            raise PromptError(400, "messages", "at least one message is needed")
        self._form = form
        self._raw = raw
        self.sites: list[TextSite] = []
        self.turns = [self._turn(i, message, limits) for i, message in enumerate(raw)]
        self.tools = dump_tools(body)
        self.kwargs = template_kwargs(body, default_kwargs)
        self._continue_final = _flag(body, "continue_final_message")
        self.leading_system = self._count_leading_system()

    @property
    def texts(self) -> list[str]:
        return [site.text for site in self.sites]

    def messages(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        messages = [self._message(turn, texts) for turn in self.turns]
        if self._last_is_plain_answer(messages):
            if self._continue_final:
                return messages[:-1]
            messages[-1] = {"role": "user", "content": messages[-1]["content"]}
        return messages

    def tail(self, texts: Sequence[str]) -> str:
        if not self._continue_final:
            return ""
        messages = [self._message(turn, texts) for turn in self.turns[-1:]]
        return messages[-1]["content"] if self._last_is_plain_answer(messages) else ""

    def reordered(self, places: Mapping[int, int]) -> list[Any]:
        """The body's messages with the part of site ``places[s]`` standing at site ``s``."""
        messages = list(self._raw)
        for site, source in places.items():
            to, origin = self.sites[site], self.sites[source]
            if messages[to.message] is self._raw[to.message]:
                message = self._raw[to.message]
                messages[to.message] = message | {"content": list(message["content"])}
            moved = self._raw[origin.message]["content"][origin.part]
            messages[to.message]["content"][to.part] = moved
        return messages

    # reading the body

    def _turn(self, index: int, message: Any, limits: PromptLimits) -> Turn:
        path = f"messages[{index}]"
        if not isinstance(message, dict):
            raise expected(path, "an object", message)
        refuse_prism(message, path)
        role = message.get("role")
        if not isinstance(role, str):
            raise expected(f"{path}.role", "a string", role)
        generic = role != "user"
        role = role.lower() if generic else role
        if generic and role not in _GENERIC_ROLES:
            known = ", ".join(("user", *_GENERIC_ROLES))
            raise PromptError(400, f"{path}.role", f"expected one of {known}")
        content, in_parts, only_text = self._content(index, message, role, limits)
        fields = _generic_fields(message, path) if generic else {}
        return Turn(role, fields, content, in_parts, only_text)

    def _content(
        self, index: int, message: Mapping[str, Any], role: str, limits: PromptLimits
    ) -> tuple[tuple[int, ...] | None, bool, bool]:
        path = f"messages[{index}].content"
        content = message.get("content")
        if isinstance(content, str):
            return (self._site(TextSite(index, None, content)),), False, True
        if isinstance(content, list):
            sites = [self._part(index, n, part, role, limits) for n, part in enumerate(content)]
            return tuple(s for s in sites if s is not None), True, None not in sites
        if content is None and role != "user":
            return None, False, True
        what = "a string or a list of parts" + ("" if role == "user" else " or null")
        raise expected(path, what, content)

    def _part(
        self, index: int, number: int, part: Any, role: str, limits: PromptLimits
    ) -> int | None:
        path = f"messages[{index}].content[{number}]"
        if not isinstance(part, dict):
            raise expected(path, "an object", part)
        kind = part.get("type")
        if kind in _THINKING and role == "assistant":
            refuse_prism(part, path)
            return None
        if kind != "text":
            raise PromptError(400, f"{path}.type", "expected 'text': only text parts are served")
        if not isinstance(part.get("text"), str):
            raise expected(f"{path}.text", "a string", part.get("text"))
        mark = part_mark(part, path, limits)
        return self._site(TextSite(index, number, part["text"], mark))

    def _site(self, site: TextSite) -> int:
        self.sites.append(site)
        return len(self.sites) - 1

    def _count_leading_system(self) -> int:
        for count, turn in enumerate(self.turns):
            if turn.role not in _SYSTEM_ROLES:
                return count
        return len(self.turns)

    # writing the template's messages

    def _message(self, turn: Turn, texts: Sequence[str]) -> dict[str, Any]:
        if turn.content is None:
            content: str | list[dict[str, str]] = ""
        elif not turn.in_parts:
            content = texts[turn.content[0]]
        elif self._joins(turn):
            content = " ".join(texts[site] for site in turn.content)
        else:
            content = [{"type": "text", "text": texts[site]} for site in turn.content]
        if isinstance(content, list):  # SGLang appends a list, and replaces a string in its place
            return {"role": turn.role, **turn.fields, "content": content}
        return {"role": turn.role, "content": content, **turn.fields}

    def _joins(self, turn: Turn) -> bool:
        """One space between parts: for string templates, and for tool results everywhere."""
        return self._form is ContentFormat.STRING or (turn.role == "tool" and turn.only_text)

    def _last_is_plain_answer(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        return messages[-1]["role"] == "assistant" and isinstance(messages[-1]["content"], str)


def _generic_fields(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in _OPTIONAL_STRINGS:
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise expected(f"{path}.{name}", "a string", value)
        if value is not None:
            fields[name] = value
    if message.get("tool_calls") is not None:
        strict = str(message["role"]).lower() == "assistant"
        fields["tool_calls"] = dump_tool_calls(message["tool_calls"], f"{path}.tool_calls", strict)
    if message.get("tools") is not None:
        fields["tools"] = dump_tools({"tools": message["tools"]}, path)
    if message.get("prefix") is not None:
        fields["prefix"] = message["prefix"]
    return fields


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise expected(name, "true or false", value)
    return value
