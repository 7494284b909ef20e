"""What an engine's prefix cache holds, per anchor, and what has not been told of it yet.

A ``CacheObserver`` on the engine's side: it turns what the cache reports into the least news. Pure;
who sends the news, and when, is the probe's (SGLang) or the simulated engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prism_ray.cache_news import SPANS_MAX, CacheNews, Span
from prism_ray.dart import NodeKind
from prism_ray.dart.anchors import AnchorMark, PathKey

Extent = tuple[int, int]
"""Tokens [start, end) of the prompts that run through an anchor."""

NOTHING: Extent = (0, 0)

Walk = Callable[[], Iterable[tuple[PathKey, int, int]]]


class CacheLedger:
    """One entry for each path key of which a token is cached, so the tree's content bounds it.

    ``walk`` yields the cache's spans (key, start, end) for a snapshot; without it the ledger's own
    are taken. Marks come as the cache has them: on whole pages.
    """

    def __init__(self, walk: Walk | None = None) -> None:
        self._walk = walk
        self._extents: dict[PathKey, Extent] = {}
        self._told: dict[PathKey, Extent] = {}
        self._empty_untold = True
        self._incarnation = 0
        self._sequence = 0
        self.snapshot_wanted = False

    def __len__(self) -> int:
        return len(self._extents)

    @property
    def has_news(self) -> bool:
        return bool(self._told) or self._empty_untold or self.snapshot_wanted

    def spans(self) -> dict[PathKey, Extent]:
        """What is cached now, by path key."""
        return dict(self._extents)

    # -- CacheObserver --------------------------------------------------------------------------

    def inserted(self, marks: Sequence[AnchorMark], resident_tokens: int) -> None:
        """See CacheObserver. Marks ascend."""
        extents, start = self._extents, 0
        for mark in marks:
            if start >= resident_tokens:
                return
            stop, key = mark.offset_tokens, mark.path_key
            if key is not None and stop > start:
                end = min(stop, resident_tokens)
                known = extents.get(key, NOTHING)
                if end > known[1]:
                    self._change(key, known, (start, end))
            start = stop

    def evicted(self, path_key: PathKey | None, kind: NodeKind, start: int, end: int) -> None:
        """See CacheObserver."""
        known = None if path_key is None else self._extents.get(path_key)
        if path_key is None or known is None or start >= known[1]:
            return
        self._change(path_key, known, (known[0], start) if start > known[0] else NOTHING)

    def flushed(self) -> None:
        """See CacheObserver. The cache's next incarnation begins, which is empty."""
        self._extents.clear()
        self._told.clear()
        self._incarnation += 1
        self._sequence = 0
        self._empty_untold = True

    def _change(self, key: PathKey, known: Extent, now: Extent) -> None:
        # What was said last is remembered once: whoever comes back to it says nothing.
        told = self._told.setdefault(key, known)
        if told == now:
            del self._told[key]
        if now == NOTHING:
            del self._extents[key]
        else:
            self._extents[key] = now

    # -- news -----------------------------------------------------------------------------------

    def take(self) -> list[CacheNews]:
        """What is new since the last call, in order: a snapshot if one is wanted, else the changes."""
        if self.snapshot_wanted:
            self.snapshot_wanted = False
            return self._snapshot()
        if not self._told and not self._empty_untold:
            return []
        self._empty_untold = False
        changed = [Span(key, *self._extents.get(key, NOTHING)) for key in self._told]
        self._told.clear()
        return [self._next(spans) for spans in _chunks(changed)]

    def beat(self) -> CacheNews:
        """News of nothing: its number shows whether everything before it arrived."""
        return self._next(())

    def _snapshot(self) -> list[CacheNews]:
        if self._walk is not None:
            walked = {key: (start, end) for key, start, end in self._walk()}
            self._extents = walked
        self._told.clear()
        self._empty_untold = False
        chunks = list(_chunks([Span(key, *extent) for key, extent in self._extents.items()]))
        return [self._next(spans, n, len(chunks)) for n, spans in enumerate(chunks)]

    def _next(self, spans: Sequence[Span], part: int = 0, parts: int = 0) -> CacheNews:
        news = CacheNews(self._incarnation, self._sequence, tuple(spans), part, parts)
        self._sequence += 1
        return news


def _chunks(spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
    """At least one chunk, none above SPANS_MAX."""
    for first in range(0, max(len(spans), 1), SPANS_MAX):
        yield spans[first : first + SPANS_MAX]
