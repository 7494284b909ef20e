"""The published OpenAPI schema: what the endpoints take and answer. Describes; checks nothing.

Bodies come from the models that check them (``openai_body``); what those leave to the prompt's rules
and to the engine (messages, tools, formats) is written out here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from prism_ray import __version__
from prism_ray.model import Lane
from prism_ray.serving.openai_body import DEADLINE_HEADER, ChatBody, CompletionBody
from prism_ray.serving.openapi_state import EXPLAINED, STATE, STEP

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}

_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"], "description": "Path of what is wrong."},
                "code": {"type": ["string", "null"], "description": "Its name, if it has one."},
                "status": {
                    "type": "integer",
                    "description": "In error events of a stream: the status it would have had.",
                },
            },
        }
    },
}

_PART: Schema = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {
        "type": {"enum": ["text"]},
        "text": _TEXT,
        "prism": {
            "type": "object",
            "required": ["segment"],
            "additionalProperties": False,
            "properties": {
                "segment": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "Its label, for people; equal texts are equal segments.",
                },
                "reorderable": {
                    "type": "boolean",
                    "description": "May trade places with movable neighbours; default false.",
                },
            },
        },
    },
}

_TOOL_CALL: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": _TEXT,
        "type": {"enum": ["function"]},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {
                "name": _TEXT,
                "arguments": {"type": "string", "description": "A JSON object, as text."},
            },
        },
    },
}

_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [_TEXT, {"type": "array", "items": _PART, "minItems": 1}, {"type": "null"}],
            "description": "A user's must be there; other roles' may be null or missing.",
        },
        "name": _TEXT,
        "tool_calls": {
            "type": "array",
            "items": _TOOL_CALL,
            "description": "What an earlier answer called; its `content` may be null.",
        },
        "tool_call_id": {"type": "string", "description": "Which call this is the result of."},
        "reasoning_content": {"type": "string", "description": "An earlier answer's thinking."},
    },
}

_TOOL: Schema = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"enum": ["function"]},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": _TEXT, "description": _TEXT, "parameters": _OBJECT},
        },
    },
}

_LISTED_SEGMENT: Schema = {
    "type": "object",
    "required": ["label", "text"],
    "additionalProperties": False,
    "properties": {
        "label": {"type": "string", "minLength": 1, "maxLength": 64},
        "text": _TEXT,
        "reorderable": {"type": "boolean", "description": "As in a content part."},
    },
}

_NUMBER: Schema = {"type": "number"}
_WHOLE: Schema = {"type": "integer"}


def _told(schema: Schema, description: str) -> Schema:
    return schema | {"description": description}


_REPORT: Schema = {
    "type": "object",
    "properties": {
        "order": _told(
            {"type": "array", "items": _TEXT}, "Labels of the segments as they were written."
        ),
        "lane": _told({"enum": [str(lane) for lane in Lane]}, "Which rule dispatched the request."),
        "replica": _told(_TEXT, "Which replica served it."),
        "reason": _told(_TEXT, "The policy's rule, then the placement's."),
        "cached_tokens_predicted": _told(_WHOLE, "As believed when it was decided."),
        "cached_tokens": _told(_WHOLE, "Prompt tokens that the engine had in its cache."),
        "non_global": _told(
            {"type": ["object", "null"]},
            "`prompt_tokens`, `cached_tokens` and `hit_rate` beyond the system prefix and the tools.",
        ),
        "queue_ms": _told(_NUMBER, "Arrival to decision."),
        "attempts": _told(_WHOLE, "1, and one more each time that it was decided anew."),
        "ttft": _told(
            {"type": ["object", "null"]},
            "`total_s` and its terms `queue_wait_s`, `prefill_s`, `first_token_s`, in seconds.",
        ),
    },
}

_ANSWER_HEADERS: Schema = {
    "x-prism-replica": {"schema": _TEXT, "description": "Which replica serves it."},
    "x-prism-lane": {"schema": _TEXT, "description": "Which rule dispatched it."},
    "x-prism-queue-ms": {
        "schema": _NUMBER,
        "description": "Milliseconds from arrival to decision.",
    },
}

_HEADERS: list[Schema] = [
    {
        "name": DEADLINE_HEADER,
        "in": "header",
        "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 86400},
        "description": "Seconds the request may wait; `prism.deadline_s` wins over it.",
    },
    {
        "name": "x-prism-tenant",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
        "description": "Whose request it is, while API keys are off.",
    },
]

_STATUSES = {
    "400": "Malformed; `param` is the path of what is wrong.",
    "401": "The API key is missing or unknown.",
    "404": "The model is not served here.",
    "408": "The deadline passed while the request was queued.",
    "413": "The body is too large.",
    "429": "The queue is full; see Retry-After.",
    "500": "The server failed.",
    "503": "No replica can serve; see Retry-After.",
}


@cache
def published_schema() -> Schema:
    """OpenAPI 3.1, JSON-ready."""
    chat, completion = ChatBody.model_json_schema(), CompletionBody.model_json_schema()
    definitions = chat.pop("$defs") | completion.pop("$defs")
    chat["properties"]["messages"]["items"] = _MESSAGE
    chat["properties"]["tools"] = {"anyOf": [{"type": "array", "items": _TOOL}, {"type": "null"}]}
    prism = definitions["PrismRequest"]["properties"]
    prism["segments"] = {
        "anyOf": [{"enum": ["off", "auto"]}, {"type": "array", "items": _LISTED_SEGMENT}],
        "description": "`off`: one opaque prompt. A list goes with completions only.",
    }
    prism["system"] = _told(_TEXT, "In front of a list of segments.")
    prism["suffix"] = _told(_TEXT, "Behind a list of segments: the question.")
    models = {
        **definitions,
        "ChatBody": chat,
        "CompletionBody": completion,
        "Report": _REPORT,
        "State": STATE,
        "Step": STEP,
        "Explained": EXPLAINED,
        "Error": _ERROR,
    }
    schema: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "prism_ray", "version": __version__},
        "paths": {
            "/v1/chat/completions": {"post": _inference("ChatBody", "OpenAI chat completions.")},
            "/v1/completions": {"post": _inference("CompletionBody", "OpenAI completions.")},
            "/v1/models": {"get": _plain("The served model.", ("401",))},
            "/health": {"get": _plain("Whether the server is alive.")},
            "/ready": {"get": _plain("Whether a replica can serve.", ("503",))},
            "/metrics": {"get": _metrics()},
            "/openapi.json": {"get": _plain("This schema.")},
            "/flush_cache": {
                "post": _plain("Empty every prefix cache.", ("401", "503"))
                | {"description": "Needs the admin key, if one is set."}
            },
            "/prism/": {"get": _page()},
            "/prism/state": {"get": _state()},
            "/prism/explain/{answer_id}": {"get": _explain()},
        },
        "components": {
            "schemas": models,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    schema["paths"]["/flush_cache"]["post"]["responses"]["409"] = _error("An engine is working.")
    described: Schema = _at_home(schema)
    return described


def _inference(model: str, summary: str) -> Schema:
    reference = {"$ref": f"#/components/schemas/{model}"}
    answer = _OBJECT | {"properties": {"prism": {"$ref": "#/components/schemas/Report"}}}
    answers = {"application/json": {"schema": answer}, "text/event-stream": {"schema": _TEXT}}
    return {
        "summary": summary,
        "parameters": _HEADERS,
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "responses": {
            "200": {
                "description": "The answer, whole or as a stream.",
                "headers": _ANSWER_HEADERS,
                "content": answers,
            },
            **{status: _error(text) for status, text in _STATUSES.items()},
        },
    }


def _plain(description: str, errors: tuple[str, ...] = ()) -> Schema:
    content = {"application/json": {"schema": _OBJECT}}
    return {
        "responses": {
            "200": {"description": description, "content": content},
            **{status: _error(_STATUSES[status]) for status in errors},
        }
    }


def _page() -> Schema:
    whole = {"type": "integer"}
    names = {"top": "Rows a table.", "refresh": "Seconds between two refreshes; 0: none."}
    page = _plain("The live page: /prism/state for people with a browser.", ("400", "401"))
    html = {"text/html": {"schema": _TEXT}}
    page["responses"]["200"]["content"] = html
    page["responses"]["503"] = {"description": "No scheduler answers; says so.", "content": html}
    parameters = [
        {"name": name, "in": "query", "schema": whole, "description": text}
        for name, text in names.items()
    ]
    return page | {"parameters": parameters}


def _state() -> Schema:
    top = {
        "name": "top",
        "in": "query",
        "schema": _WHOLE,
        "description": "Most rows of a list; all replicas are told (20).",
    }
    state = _plain("What waits, what was sent, and every replica.", ("400", "401", "503"))
    state["responses"]["200"]["content"] = _json("State")
    return state | {"parameters": [top]}


def _explain() -> Schema:
    name = {
        "name": "answer_id",
        "in": "path",
        "required": True,
        "schema": _TEXT,
        "description": "The `id` of an answer, or a request id.",
    }
    found = _plain("Why a request went where it went.", ("401", "503"))
    found["responses"]["200"]["content"] = _json("Explained")
    found["responses"]["404"] = _error("No such request is remembered.")
    return found | {"parameters": [name]}


def _metrics() -> Schema:
    return {
        "responses": {
            "200": {
                "description": "Prometheus text.",
                "content": {"text/plain": {"schema": _TEXT}},
            },
            "503": _error(_STATUSES["503"]),
        }
    }


def _error(description: str) -> Schema:
    return {"description": description, "content": _json("Error")}


def _json(name: str) -> Schema:
    """The content of an answer that has a schema of its own."""
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _at_home(value: Any) -> Any:
    """References as OpenAPI has them: pydantic writes ``#/$defs/NAME``."""
    if isinstance(value, dict):
        return {
            key: item.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref"
            else _at_home(item)
            for key, item in value.items()
        }
    return [_at_home(item) for item in value] if isinstance(value, list) else value
