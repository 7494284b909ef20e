"""docs/architecture.md shows the code as it is."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


def test_the_map_has_every_module_with_its_first_sentence(
    load_tool: Callable[[str], ModuleType],
) -> None:
    tool = load_tool("module_map")
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.with_map(page), "run: python tools/module_map.py"
