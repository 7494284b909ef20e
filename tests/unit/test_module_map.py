"""docs/architecture.md shows the code as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "module_map.py"


def test_the_map_has_every_module_with_its_first_sentence() -> None:
    spec = importlib.util.spec_from_file_location("module_map", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.with_map(page), "run: python tools/module_map.py"
