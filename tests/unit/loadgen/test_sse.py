"""Server-sent events survive any cut, any line end and what else a stream may hold."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sse import ServerSentEvent, SseDecoder


def decode(*pieces: bytes) -> list[str]:
    decoder = SseDecoder()
    return [event.data for piece in pieces for event in decoder.feed(piece)]


STREAM = (
    ': keep-alive\n\ndata: {"a": 1}\n\r\ndata: één\ndata:two\r\rid: 3\nretry: 5\n\n'
    "event: error\ndata:  spaced\n\ndata\n\ndata: [DONE]\n\n"
).encode()
WANTED = ['{"a": 1}', "één\ntwo", " spaced", "", "[DONE]"]


def test_a_whole_stream_gives_its_events() -> None:
    assert decode(STREAM) == WANTED


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    assert decode(*pieces) == WANTED


def test_byte_by_byte_is_the_hardest_cut() -> None:
    assert decode(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == WANTED


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_line_end_works(end: bytes) -> None:
    # a lone CR at the very end may be half of a CRLF, so one more byte settles it
    assert decode(b"data: x" + end + end + b":") == ["x"]


def test_comments_are_counted_and_are_no_events() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b": a\n:b\n\ndata: x\n\n") == [ServerSentEvent("x")]
    assert decoder.comments == 2


def test_an_events_name_is_kept_for_that_event_only() -> None:
    decoder = SseDecoder()
    events = decoder.feed(b"event: error\ndata: x\n\ndata: y\n\n")
    assert [e.event for e in events] == ["error", "message"]


def test_an_unfinished_event_is_no_event() -> None:
    assert decode(b"data: x\n\ndata: y\n") == ["x"]


def test_a_byte_order_mark_is_skipped_only_at_the_start() -> None:
    assert decode(b"\xef\xbb", b"\xbfdata: x\n\n", b"\xef\xbb\xbfdata: y\n\n") == ["x"]
