"""Tables in Markdown, for reports. What stands in them is the caller's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without its last line end. Cells must not contain ``|`` or line ends."""
    lines = [_line(head), "|" + "---|" * len(head)]
    return "\n".join(lines + [_line(row) for row in rows])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
