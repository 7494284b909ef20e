"""Tools, tool calls and template arguments of a chat body, in the form that SGLang renders them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from prism_ray.prompt.errors import PromptError, expected

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
_RESERVED_KWARGS = (
    "chat_template",
    "messages",
    "conversation",
    "tools",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "return_dict",
)


def dump_tools(body: Mapping[str, Any], path: str = "") -> list[dict[str, Any]] | None:
    """The tools that the template shows, or None: none given, or ``tool_choice`` rules them out."""
    where = f"{path}.tools" if path else "tools"
    tools = body.get("tools")
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        raise expected(where, "a list of tools", tools)
    dumped = [_dump_tool(tool, f"{where}[{i}]") for i, tool in enumerate(tools)]
    choice = body.get("tool_choice")
    if choice == "none":
        return None
    if choice is None or isinstance(choice, str):
        return dumped
    name = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if not isinstance(name, str):
        raise expected("tool_choice", "a string or an object with function.name", choice)
    return [tool for tool in dumped if tool["function"]["name"] == name] or None


def _dump_tool(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise expected(path, "an object", tool)
    function = tool.get("function")
    if not isinstance(function, dict):
        raise expected(f"{path}.function", "an object", function)
    if not isinstance(function.get("name"), str):
        raise expected(f"{path}.function.name", "a string", function.get("name"))
    defer = tool.get("defer_loading")
    known: dict[str, Any] = {
        "description": function.get("description"),
        "name": function["name"],
        "parameters": function.get("parameters"),
        "strict": function.get("strict"),
        "defer_loading": defer
        if function.get("defer_loading") is None
        else function["defer_loading"],
    }
    shown = {
        k: v for k, v in known.items() if v is not None or k not in ("strict", "defer_loading")
    }
    # The client's own key order, then what it left out: schemas are rendered as they were given.
    order = [key for key in function if key in shown] + [
        key for key in shown if key not in function
    ]
    return {
        "type": tool.get("type", "function"),
        "function": {key: shown[key] for key in order},
        "defer_loading": defer,
    }


def dump_tool_calls(calls: Any, path: str, parse_arguments: bool) -> list[dict[str, Any]]:
    """Tool calls of an earlier answer; the arguments of an assistant's as an object."""
    if not isinstance(calls, list):
        raise expected(path, "a list", calls)
    return [_dump_call(call, f"{path}[{i}]", parse_arguments) for i, call in enumerate(calls)]


def _dump_call(call: Any, path: str, parse_arguments: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise expected(f"{path}.function", "an object", function)
    arguments = function.get("arguments")
    if isinstance(arguments, str) and parse_arguments:
        arguments = _parse_arguments(arguments, f"{path}.function.arguments")
    elif arguments is not None and not isinstance(arguments, str | dict):
        raise expected(f"{path}.function.arguments", "a string or an object", arguments)
    return {
        "id": call.get("id"),
        "index": call.get("index"),
        "type": call.get("type", "function"),
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def _parse_arguments(text: str, path: str) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise PromptError(400, path, "expected a JSON object in a string") from None
    if not isinstance(value, dict):
        raise PromptError(400, path, "expected a JSON object in a string")
    return value


def template_kwargs(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Extra variables of the template: ``reasoning_effort``, ``chat_template_kwargs``, ``defaults``.

    An effort also sets ``thinking`` and ``enable_thinking``, unless the client set them.
    """
    given = body.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise expected("chat_template_kwargs", "an object", given)
    kwargs = dict(given or {})
    for name in _RESERVED_KWARGS:
        if name in kwargs:
            raise PromptError(400, f"chat_template_kwargs.{name}", "clients may not set this")
    effort, thinking = _reasoning(body)
    if thinking is not None:
        kwargs.setdefault("thinking", thinking)
        kwargs.setdefault("enable_thinking", thinking)
    effort = kwargs.pop("reasoning_effort", None) or effort
    for name, value in defaults.items():
        kwargs.setdefault(name, value)
    if effort is not None:
        kwargs["reasoning_effort"] = effort
    return kwargs


def _reasoning(body: Mapping[str, Any]) -> tuple[Any, bool | None]:
    """(effort, whether to think: None leaves it to the template)."""
    effort = body.get("reasoning_effort")
    thinking: bool | None = None
    config = body.get("reasoning")
    if isinstance(config, dict):
        own = config.get("effort")
        own = config.get("reasoning_effort") if own is None else own
        effort = _effort(own, "reasoning.effort") if own is not None else effort
        enabled = config.get("enabled")
        enabled = config.get("enable", False) if enabled is None else enabled
        if isinstance(enabled, str):
            enabled = enabled.strip().lower() in ("1", "true", "yes", "y", "on")
        thinking = True if enabled else None
    if effort is not None:
        effort = _effort(effort, "reasoning_effort")
        thinking = effort != "none"
    return effort, thinking


def _effort(value: Any, path: str) -> str | float:
    if isinstance(value, str) and value in _EFFORTS:
        return value
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0.0 <= number <= 0.99:
        raise expected(path, f"one of {', '.join(_EFFORTS)}, or a number in 0..0.99", value)
    return number
