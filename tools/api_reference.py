"""Writes the references of docs/api.md and docs/configuration.md from the schemas. No product code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prism_ray.config import PrismConfig
from prism_ray.serving.body_fields import ALLOWED, REFUSED
from prism_ray.serving.openapi import published_schema

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"
Schema = Mapping[str, Any]

OBJECTS = {
    "ChatBody": "Chat completions: body",
    "CompletionBody": "Completions: body",
    "PrismRequest": "`prism` of a body",
    "Report": "`prism` of an answer",
    "State": "State of an application",
    "Step": "A step of the last minutes",
    "Explained": "Explained decision",
    "Error": "Errors",
}
ANSWERS = {"Report", "State", "Step", "Explained", "Error"}
"""What is only answered: its fields have no defaults, and are there or not."""


def http_reference() -> str:
    """Endpoints, then the objects that they take and answer."""
    schema = published_schema()
    named = schema["components"]["schemas"]
    lines = ["## Endpoints", ""]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            lines += _endpoint(method.upper(), path, operation)
    for name, title in OBJECTS.items():
        lines += [f"## {title}", "", *_fields(named[name], named, answered=name in ANSWERS), ""]
    lines += ["## Fields that are passed on to the engine", ""]
    for endpoint, allowed in ALLOWED.items():
        model = "ChatBody" if endpoint == "chat" else "CompletionBody"
        others = sorted(allowed - set(named[model]["properties"]))
        lines += [f"*{endpoint}*, beside those above: {_codes(others)}.", ""]
    lines += [
        "Engine internals that no client may set (400), and everything that begins with "
        f"`bootstrap_`: {_codes(sorted(REFUSED))}.",
        "",
        "Any other field is accepted and dropped, as OpenAI's servers do.",
    ]
    return "\n".join(lines).strip()


def _endpoint(method: str, path: str, operation: Schema) -> Iterator[str]:
    answers = operation["responses"]
    yield f"### `{method} {path}`"
    yield ""
    said = operation.get("summary") or answers["200"]["description"]
    yield " ".join([said, *([operation["description"]] if "description" in operation else [])])
    yield ""
    body = operation.get("requestBody")
    if body is not None:
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        title = OBJECTS[name]
        yield f"Body: [{title}](#{_anchor(title)})."
        yield ""
    answer = answers["200"].get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in answer:
        title = OBJECTS[answer["$ref"].rpartition("/")[2]]
        yield f"Answer: [{title}](#{_anchor(title)})."
        yield ""
    if operation.get("parameters"):
        yield "| parameter | in | type | |"
        yield "|---|---|---|---|"
        for one in operation["parameters"]:
            told = one.get("description", "")
            yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {told} |"
        yield ""
    if len(answers) > 1:
        yield "| status | |"
        yield "|---|---|"
        for status, answer in sorted(answers.items()):
            yield f"| {status} | {answer['description']} |"
        yield ""
    headers = answers["200"].get("headers", {})
    if headers:
        yield "| header of an answer | |"
        yield "|---|---|"
        for name, one in headers.items():
            yield f"| `{name}` | {one['description']} |"
        yield ""


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _fields(
    schema: Schema, named: Mapping[str, Schema], *, answered: bool = False
) -> Iterator[str]:
    yield f"| field | type | {'there' if answered else 'default'} | |"
    yield "|---|---|---|---|"
    yield from _rows(schema, named, "", "always" if answered else "needed")


def _rows(schema: Schema, named: Mapping[str, Schema], under: str, must: str) -> Iterator[str]:
    needed = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = must if name in needed else _default(field)
        yield (
            f"| `{under}{name}` | {_type(field, named)} | {default} | {field.get('description', '')} |"
        )
        inner, mark = _inside(field)
        if inner is not None:
            yield from _rows(inner, named, f"{under}{name}{mark}.", must)


def _inside(field: Schema) -> tuple[Schema | None, str]:
    """The object within a field that has no page of its own, with what its path is continued by."""
    for one in field.get("anyOf", (field,)):
        if "properties" in one:
            return one, ""
        items = one.get("items", {})
        for item in items.get("anyOf", (items,)):
            if "properties" in item:
                return item, "[]"
    return None, ""


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value is None else f"`{json.dumps(value)}`"


def _type(schema: Schema, named: Mapping[str, Schema] | None = None) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in OBJECTS and named is not None:
            return f"object, see {OBJECTS[name]}"
        inner = (named or {}).get(name, {}).get("properties", {})
        return "object: " + ", ".join(f"`{key}`" for key in inner)
    if "anyOf" in schema:
        kinds = (_type(one, named) for one in schema["anyOf"] if one != {"type": "null"})
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(_type(schema | {"type": one}, named) for one in kind)
    if kind == "array":
        of = _type(schema["items"], named)
        return f"list of {of}" + _bounds(schema, "minItems", "maxItems", "items")
    if kind == "string":
        return kind + _bounds(schema, "minLength", "maxLength", "characters")
    return str(kind) + _range(schema)


def _bounds(schema: Schema, least: str, most: str, of: str) -> str:
    if least in schema and most in schema:
        return f", {schema[least]} to {schema[most]} {of}"
    if most in schema:
        return f", ≤ {schema[most]} {of}"
    return ", not empty" if schema.get(least) == 1 else ""


def _range(schema: Schema) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[name]}" for name, sign in signs.items() if name in schema]
    return f", {', '.join(bounds)}" if bounds else ""


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def settings_reference() -> str:
    """Every setting of a config, section by section."""
    schema = PrismConfig.model_json_schema()
    named = schema["$defs"]
    lines: list[str] = []
    for name, field in schema["properties"].items():
        section = named[field["$ref"].rpartition("/")[2]]
        lines += _section("##", name, section, named)
        for inner, own in section["properties"].items():
            for one in own.get("anyOf", (own,)):
                if "$ref" in one:
                    within = named[one["$ref"].rpartition("/")[2]]
                    lines += _section("###", f"{name}.{inner}", within, named)
    return "\n".join(lines).strip()


def _section(level: str, name: str, section: Schema, named: Mapping[str, Schema]) -> Iterator[str]:
    told = " ".join(section["description"].split())
    yield from (f"{level} `{name}`", "", told, "", *_fields(section, named), "")


PAGES = {"api.md": http_reference, "configuration.md": settings_reference}


def with_reference(page: str, reference: str) -> str:
    """The page with its reference replaced."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n\n{reference}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    for name, reference in PAGES.items():
        page = DOCS / name
        page.write_text(
            with_reference(page.read_text(encoding="utf-8"), reference()), encoding="utf-8"
        )
        sys.stdout.write(f"wrote {page}\n")
