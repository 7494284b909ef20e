"""Writes the module map of docs/architecture.md from the modules' first sentences. No product code."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: begin -->", "<!-- modules: end -->"
ROOMS = ("prism_ray", "loadgen")


def first_sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.sub(r"\s+", " ", text.split("\n\n")[0])


def _own_modules_first(path: Path) -> tuple[Path, bool, str]:
    """A package's own modules stand together, before those of its rooms."""
    return path.parent, path.name != "__init__.py", path.name


def module_map() -> str:
    """One list a room, one line a module; a package's line is its ``__init__``'s."""
    lines = []
    for room in ROOMS:
        for path in sorted((REPOSITORY / room).rglob("*.py"), key=_own_modules_first):
            name = path.relative_to(REPOSITORY)
            if path.name == "__init__.py":
                lines += ["", f"**`{name.parent}/`** {first_sentence(path)}", ""]
            else:
                lines.append(f"- `{name}`: {first_sentence(path)}")
    return "\n".join(lines).strip()


def with_map(page: str) -> str:
    """The page with its map replaced."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n\n{module_map()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
