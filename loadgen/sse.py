"""Server-sent events out of a byte stream. Knows nothing of HTTP, JSON or OpenAI.

Follows the event stream format of the HTML standard as far as OpenAI streams use it: comments,
fields, data over several lines, any of the three line ends, pieces cut anywhere, also inside a
character.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its name ("message" unless said otherwise) and its data lines joined."""

    data: str
    event: str = "message"


@dataclass(slots=True)
class SseDecoder:
    """Feed it bytes as they come; it answers with the events that they complete.

    An event that the stream's end leaves without its blank line is dropped, as the standard says.
    ``comments`` counts comment lines (keep-alives).
    """

    comments: int = 0
    _text: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    _rest: str = ""
    _data: list[str] = field(default_factory=list)
    _event: str = ""
    _at_start: bool = True

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """The events completed by ``piece``, in order."""
        text = self._text.decode(piece)
        if self._at_start and text:
            text = text.removeprefix("\ufeff")
            self._at_start = False
        lines = self._lines(self._rest + text)
        return [event for line in lines if (event := self._line(line)) is not None]

    def _lines(self, text: str) -> list[str]:
        """Complete lines of ``text``; the rest waits. A final CR waits too: its LF may follow."""
        lines = []
        start = 0
        while (end := _line_end(text, start)) is not None:
            stop, after = end
            lines.append(text[start:stop])
            start = after
        self._rest = text[start:]
        return lines

    def _line(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            self.comments += 1
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, self._data = self._data, []
        event, self._event = self._event, ""
        return ServerSentEvent("\n".join(data), event or "message") if data else None


def _line_end(text: str, start: int) -> tuple[int, int] | None:
    """(where the line's text stops, where the next line starts); None if it isn't complete."""
    found = [i for i in (text.find("\n", start), text.find("\r", start)) if i >= 0]
    if not found:
        return None
    stop = min(found)
    if text[stop] == "\n":
        return stop, stop + 1
    if stop + 1 == len(text):
        return None
    return stop, stop + (2 if text[stop + 1] == "\n" else 1)
