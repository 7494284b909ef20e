"""The live page as plain text for a terminal. Pure; whoever prints it says how wide and high that is."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prism_ray.telemetry.live_page_tables import Cell, Column, Table
from prism_ray.telemetry.live_page_view import Chart, View, view_of
from prism_ray.telemetry.live_page_words import seconds

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "  "
WIDE_LEAST = 12
"""A column that takes what room is left gets at least so much."""


def text(state: Mapping[str, Any], width: int = 120) -> str:
    """Everything that the page shows, in lines of at most ``width`` columns where tables allow it."""
    return "\n".join(_lines(view_of(state), width))


def fitted(state: Mapping[str, Any], width: int, height: int) -> str:
    """As much of it as fits a window: equally many rows of each table, and no line that would wrap."""
    view = view_of(state)
    rows = min(height, max(len(table.rows) for table in view.tables))
    lines = list(_lines(view, width, rows))
    while len(lines) > height and rows > 1:
        rows -= 1
        lines = list(_lines(view, width, rows))
    return "\n".join(cut(line, width) for line in lines[:height])


def _lines(view: View, width: int, rows_max: int | None = None) -> Iterator[str]:
    yield f"prism_ray  policy {view.policy}  placement {view.placement}  epoch {view.epoch}"
    if view.note:
        yield from textwrap.wrap(view.note, width)
    facts = [f"{f.name} {f.text}" + (f" ({f.more})" if f.more else "") for f in view.facts]
    yield from _flow(facts, width)
    for chart in view.charts:
        yield ""
        yield f"{chart.title}, P95 a step, {seconds(chart.span_s)}: {sparkline(chart)}"
        yield from textwrap.wrap(chart.caption, width, initial_indent=GAP, subsequent_indent=GAP)
    for table in view.tables:
        yield ""
        yield f"{table.title}" + (f" ({len(table.rows)})" if table.rows else "")
        if table.rows:
            yield from _table(replace(table, rows=table.rows[:rows_max]), width)
            if rows_max is not None and len(table.rows) > rows_max:
                yield f"{GAP}… {len(table.rows) - rows_max} more"
        else:
            yield GAP + table.empty


def sparkline(chart: Chart, line: int = -1) -> str:
    """One block a step, as high as its value beside the highest one; a dot where nothing was counted."""
    values = [span.values[line] for span in chart.spans]
    most = max((v for v in values if v is not None), default=0.0)
    return "".join(
        "·" if v is None else BLOCKS[min(len(BLOCKS) - 1, int(len(BLOCKS) * v / (most or 1.0)))]
        for v in values
    )


def columns_of(string: str) -> int:
    """Terminal columns: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in string
    )


def cut(string: str, width: int) -> str:
    """At most ``width`` terminal columns; an ellipsis stands for what is left out."""
    if columns_of(string) <= width:
        return string
    kept = ""
    for character in string:
        if columns_of(kept + character) >= width:
            break
        kept += character
    return kept + "…"


def _flow(parts: Sequence[str], width: int) -> Iterator[str]:
    line = ""
    for part in parts:
        joined = f"{line}{GAP}{part}" if line else part
        if line and columns_of(joined) > width:
            yield line
            joined = part
        line = joined
    yield line


def _table(table: Table, width: int) -> Iterator[str]:
    names = [Cell(column.name) for column in table.columns]
    widths = _widths(table, width)
    for row in (names, *table.rows):
        cells = zip(row, table.columns, widths, strict=True)
        yield GAP + GAP.join(_aligned(*cell) for cell in cells).rstrip()


def _widths(table: Table, width: int) -> list[int]:
    """As wide as the widest cell; the wide column gives way."""
    widths = [
        max(columns_of(t) for t in (column.name, *(_whole(row[place]) for row in table.rows)))
        for place, column in enumerate(table.columns)
    ]
    over = sum(widths) + len(GAP) * len(widths) - width
    for place, column in enumerate(table.columns):
        if column.wide and over > 0:
            widths[place] = max(WIDE_LEAST, widths[place] - over)
    return widths


def _aligned(cell: Cell, column: Column, width: int) -> str:
    short = cut(_whole(cell), width)
    room = " " * (width - columns_of(short))
    return room + short if column.number else short + room


def _whole(cell: Cell) -> str:
    return f"{cell.text} ({cell.more})" if cell.more else cell.text
