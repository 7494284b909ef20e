"""What an engine says of its prefix cache: numbered news of spans, and their wire form.

Values only: who keeps the spans of a cache is ``engine.cache_ledger``, who believes them is
``dispatch.exact_residency``.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import msgpack

WIRE_VERSION = 1
SPANS_MAX = 4096
"""Spans of one message; more go in several."""


class Span(NamedTuple):
    """Tokens [start, end) of a prompt's front are cached, as far as they belong to one anchor.

    ``path_key`` names the anchor's place (``dart.anchors``); while a token of a span is cached all
    before it are. ``end == start``: nothing of it is cached any more.
    """

    path_key: bytes
    start: int
    end: int


class CacheNews(NamedTuple):
    """One message. ``sequence`` counts from 0 without gaps in each ``incarnation`` of the cache.

    A flush or new weights begin the next incarnation, whose first message finds it empty. Spans are
    absolute: the newest word on a path key is the whole truth on it. A message with ``parts`` > 0 is
    part ``part`` of a snapshot, which names everything that is cached; its parts follow one another.
    """

    incarnation: int
    sequence: int
    spans: tuple[Span, ...] = ()
    part: int = 0
    parts: int = 0


def encode(news: CacheNews) -> bytes:
    """One message as msgpack: a header of five numbers, then three values a span."""
    header = (WIRE_VERSION, news.incarnation, news.sequence, news.part, news.parts)
    packed: bytes = msgpack.packb((*header, *chain.from_iterable(news.spans)))
    return packed


def decode(message: bytes) -> CacheNews:
    """Inverse of ``encode``; raises ValueError for anything else."""
    try:
        version, incarnation, sequence, part, parts, *flat = msgpack.unpackb(message)
        spans = tuple(map(Span._make, zip(flat[::3], flat[1::3], flat[2::3], strict=True)))
        news = CacheNews(incarnation, sequence, spans, part, parts)
    except Exception as error:
        raise ValueError(f"no news of a cache: {error}") from None
    if version != WIRE_VERSION:
        raise ValueError(f"news of a cache in version {version}, this reads {WIRE_VERSION}")
    return news
