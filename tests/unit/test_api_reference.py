"""docs/api.md and docs/configuration.md show the schemas as they are."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from prism_ray.config import PrismConfig
from prism_ray.serving.openapi import published_schema


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("api_reference")


@pytest.mark.parametrize("name", ["api.md", "configuration.md"])
def test_the_pages_are_fresh(tool: ModuleType, name: str) -> None:
    page = (tool.DOCS / name).read_text(encoding="utf-8")
    fresh = tool.with_reference(page, tool.PAGES[name]())
    assert page == fresh, "run: python tools/api_reference.py"


def test_every_endpoint_and_field_is_in_the_reference(tool: ModuleType) -> None:
    reference = tool.http_reference()
    for path, methods in published_schema()["paths"].items():
        for method in methods:
            assert f"### `{method.upper()} {path}`" in reference
    for name, model in published_schema()["components"]["schemas"].items():
        for field in model["properties"]:
            assert f"`{field}`" in reference or name == "StreamOptions", (name, field)
    for nested in ("messages[].content[].prism.reorderable", "segments[].label", "include_usage"):
        assert f"`{nested}`" in reference


def test_every_setting_is_in_the_reference_and_says_what_it_is(tool: ModuleType) -> None:
    reference = tool.settings_reference()
    for name, section in PrismConfig.model_fields.items():
        assert f"## `{name}`" in reference
        assert section.annotation is not None
        for field in section.annotation.model_fields:
            assert f"| `{field}` |" in reference, f"{name}.{field}"


def test_fields_of_a_table_have_no_pipes_that_would_break_it(tool: ModuleType) -> None:
    for page in tool.PAGES.values():
        for line in page().splitlines():
            if line.startswith("|"):
                assert line.count("|") in (3, 5), line
