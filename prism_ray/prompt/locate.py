"""Where a conversation's texts ended up in the rendered prompt.

Templates strip, join, drop and wrap what they are given. So the conversation is rendered once more
with a mark at both ends of every text: taking the marks out again must give the first rendering,
and then the marks' places are the texts' places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_PRIVATE_USE = range(0xE000, 0xF8FE, 3)


class Place(NamedTuple):
    """A text's extent in the rendered prompt, in characters."""

    start: int
    end: int


def locate(
    rendered: str, texts: Sequence[str], render: Callable[[Sequence[str]], str]
) -> list[Place | None]:
    """The place of each text in ``rendered`` (= ``render(texts)``); None where it cannot be told.

    Blank texts have no place. Places hold as much of a text as the template kept.
    """
    found = _by_marks(rendered, texts, render)
    return _by_search(rendered, texts) if found is None else found


def _by_marks(
    rendered: str, texts: Sequence[str], render: Callable[[Sequence[str]], str]
) -> list[Place | None] | None:
    """None if marks change what the template does (it looked at a text's first characters, say)."""
    marks = _unused_marks(rendered)
    if marks is None:
        return None
    opening, first, last = marks
    marked = render([_with_marks(t, n, marks) for n, t in enumerate(texts)])
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    plain: list[str] = []
    length = cursor = 0
    for match in re.finditer(f"{opening}([0-9]+)([{first}{last}])", marked):
        plain.append(marked[cursor : match.start()])
        length += match.start() - cursor
        cursor = match.end()
        known = starts if match[2] == first else ends
        known.setdefault(int(match[1]), length)
    plain.append(marked[cursor:])
    if "".join(plain) != rendered:
        return None
    return [_place(rendered, t, starts.get(n), ends.get(n)) for n, t in enumerate(texts)]


def _unused_marks(rendered: str) -> tuple[str, str, str] | None:
    """Three private-use characters that the prompt does not contain."""
    for code in _PRIVATE_USE:
        marks = (chr(code), chr(code + 1), chr(code + 2))
        if not any(mark in rendered for mark in marks):
            return marks
    return None


def _with_marks(text: str, number: int, marks: tuple[str, str, str]) -> str:
    """Marks go inside a text's blank edges, which a template may strip."""
    core = text.strip()
    if not core:
        return text
    opening, first, last = marks
    lead = text[: len(text) - len(text.lstrip())]
    trail = text[len(lead) + len(core) :]
    return f"{lead}{opening}{number}{first}{core}{opening}{number}{last}{trail}"


def _place(rendered: str, text: str, start: int | None, end: int | None) -> Place | None:
    """From the marks' places to the text's, blank edges included as far as they were kept."""
    core = text.strip()
    lead = text[: len(text) - len(text.lstrip())]
    trail = text[len(lead) + len(core) :]
    if start is not None and end is None:  # the back was cut off
        end = start + _common_prefix(rendered[start : start + len(core)], core)
        trail = ""
    if end is not None and start is None:  # the front was cut off, like past thinking
        start = end - _common_suffix(rendered[max(0, end - len(core)) : end], core)
        start += len(rendered[start:end]) - len(rendered[start:end].lstrip())
        lead = ""
    if start is None or end is None:
        return None
    start -= _common_suffix(rendered[max(0, start - len(lead)) : start], lead)
    end += _common_prefix(rendered[end : end + len(trail)], trail)
    return Place(start, end) if start < end else None


def _by_search(rendered: str, texts: Sequence[str]) -> list[Place | None]:
    """Texts in reading order, each looked for after the last one found."""
    places: list[Place | None] = []
    cursor = 0
    for text in texts:
        core = text.strip()
        start = rendered.find(core, cursor) if core else -1
        place = _place(rendered, text, start, start + len(core)) if start >= 0 else None
        if place is not None and place.start >= cursor:
            cursor = place.end
            places.append(place)
        else:
            places.append(None)
    return places


def _common_prefix(a: str, b: str) -> int:
    """Length of the longest common prefix, by bisection: comparing slices is fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_suffix(a: str, b: str) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a.endswith(b[len(b) - middle :]):
            low = middle
        else:
            high = middle - 1
    return low
