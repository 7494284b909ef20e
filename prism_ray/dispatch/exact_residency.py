"""What a replica's KV-cache holds, as its engine says: a copy of the engine's spans by path key.

Follows the numbered news of ``cache_news``. Where one is missing it says so, wants a snapshot, and
until that has come adds what follows from the requests that were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from prism_ray.cache_news import CacheNews, Span
from prism_ray.dart.anchors import PathKey
from prism_ray.dispatch.fronts import Fronts
from prism_ray.dispatch.path_places import Place, places_of
from prism_ray.dispatch.residency import Remembered, ResidencyState
from prism_ray.model import Atom
from prism_ray.scheduling import Match

GUESSES_MAX = 65_536
"""Path keys whose residency is guessed while the truth is not known; the oldest are forgotten."""


class ExactResidency:
    """The spans that the engine named last, and what sent requests are computing.

    Residency is closed upwards, so a prompt's cached prefix ends where the span of its deepest
    resident anchor ends. What is fixed between two anchors (a separator, a turn's header) belongs to
    the second one's span: it is there for another text behind it, too, while any such span is. A text
    that merely begins like another is not foreseen: path keys say nothing of tokens.
    """

    def __init__(self) -> None:
        self._spans: dict[PathKey, Span] = {}
        self._guessed: dict[PathKey, int] = {}
        self._computing: dict[PathKey, int] = {}
        self._in_flight: dict[str, list[Place]] = {}
        self._prefilled: set[str] = set()
        self._fronts = Fronts()
        self._incarnation = -1
        self._cleared = -1
        self._next = 0
        self._complete = False
        self._snapshot: dict[PathKey, Span] | None = None
        self.tokens = 0
        self.gaps = 0

    @property
    def state(self) -> ResidencyState:
        return ResidencyState.EXACT if self._complete else ResidencyState.DEGRADED

    @property
    def wants_snapshot(self) -> bool:
        """Something is not known, and no snapshot is on its way in."""
        return not self._complete and self._snapshot is None

    # -- CacheView ------------------------------------------------------------------------------

    def match(self, path: tuple[Atom, ...]) -> Match:
        spans, guessed, computing = self._spans, self._guessed, self._computing
        fronts = self._fronts.resident
        cached = sent = 0
        for key, end in places_of(path):
            if key in spans:
                cached = spans[key].end
            elif key in fronts or key in guessed:
                cached = end
            if key in computing:
                sent = end
        return Match(cached, max(cached, sent))

    # -- what was sent --------------------------------------------------------------------------

    def send(self, request_id: str, path: tuple[Atom, ...], room_tokens: int) -> Match:
        """See Residency. What must make room for it is the engine's to say."""
        match = self.match(path)
        places = places_of(path)
        self._fronts.learn(places, self._spans)
        held = [place for place in places if place[1] > match.cached_tokens]
        for key, _ in held:
            self._computing[key] = self._computing.get(key, 0) + 1
        self._in_flight[request_id] = held
        return match

    def prefill_ended(self, request_id: str) -> None:
        """See Residency. The engine's own word came with or before this one."""
        held = self._in_flight.get(request_id)
        if held is None or request_id in self._prefilled:
            return
        self._prefilled.add(request_id)
        self._compute_no_more(held)
        if not self._complete:
            self._guessed.update(held)
            while len(self._guessed) > GUESSES_MAX:
                del self._guessed[next(iter(self._guessed))]

    def release(self, request_id: str) -> None:
        held = self._in_flight.pop(request_id, [])
        if request_id in self._prefilled:
            self._prefilled.remove(request_id)
        else:
            self._compute_no_more(held)
        self._fronts.forget(key for key, _ in held if key not in self._spans)

    def _compute_no_more(self, held: list[Place]) -> None:
        for key, _ in held:
            left = self._computing[key] - 1
            if left:
                self._computing[key] = left
            else:
                del self._computing[key]

    def clear(self) -> None:
        """See Residency. The engine says so itself; until it has, nothing is known."""
        if self._incarnation > self._cleared:
            self._cleared = self._incarnation
            return
        self._cleared = self._incarnation + 1
        self._empty()
        self._guessed.clear()
        self._complete, self._snapshot = False, None

    def _empty(self) -> None:
        self._spans.clear()
        self._fronts = Fronts()
        self.tokens = 0

    # -- what the engine says -------------------------------------------------------------------

    def apply(self, news: CacheNews) -> None:
        """Take the next message. Late ones of an older incarnation, and doubled ones, are ignored."""
        if news.incarnation < self._incarnation:
            return
        if news.incarnation > self._incarnation:
            self._begin(news)
        if news.sequence < self._next:
            return
        if news.sequence > self._next:
            self._complete, self._snapshot = False, None
            self.gaps += 1
        self._next = news.sequence + 1
        for span in news.spans:
            self._set(span)
        if news.parts:
            self._take_part(news)

    def _begin(self, news: CacheNews) -> None:
        """A cache that is empty, as its first message (number 0) says; a later one is a gap."""
        if self._incarnation >= 0 or news.sequence == 0:
            self._guessed.clear()
        if self._incarnation < 0:
            self._cleared = news.incarnation
        self._incarnation, self._next = news.incarnation, 0
        self._complete, self._snapshot = True, None
        self._empty()

    def _take_part(self, news: CacheNews) -> None:
        if news.part == 0:
            self._snapshot = {}
        if self._snapshot is None:
            return
        self._snapshot.update((span.path_key, span) for span in news.spans)
        if news.part == news.parts - 1:
            for key in [key for key in self._spans if key not in self._snapshot]:
                self._set(Span(key, 0, 0))
            self._snapshot = None
            self._guessed.clear()
            self._complete = True

    def _set(self, span: Span) -> None:
        key = span.path_key
        known = self._spans.pop(key, None)
        if known is not None:
            self.tokens -= known.end - known.start
        if span.end > span.start:
            self._spans[key] = span
            self.tokens += span.end - span.start
        else:
            self._guessed.pop(key, None)
        self._fronts.changed(key, known.end if known else 0, span.end)

    # -- restarts -------------------------------------------------------------------------------

    def remember(self, limit: int) -> list[Remembered]:
        """See Residency. Only what the engine said: a guess would be older with every restart."""
        newest = islice(reversed(self._spans.items()), limit)
        return [Remembered(-1, key, span.end) for key, span in newest]

    def recall(self, rows: Sequence[Remembered], room_tokens: int) -> None:
        """See Residency. Guesses, until the engine's snapshot is there."""
        if self._complete:
            return
        mine = self._guessed
        self._guessed = {row.key: row.tokens for row in reversed(rows)} | mine

    # -- looking --------------------------------------------------------------------------------

    def spans(self) -> dict[PathKey, tuple[int, int]]:
        """All that is resident: start and end by path key."""
        return {key: (span.start, span.end) for key, span in self._spans.items()}

    def check_integrity(self) -> None:
        """Raise AssertionError unless tokens and computing counts equal a recount."""
        assert self.tokens == sum(s.end - s.start for s in self._spans.values())
        assert all(key == s.path_key and s.start < s.end for key, s in self._spans.items())
        counts: dict[PathKey, int] = {}
        for name, held in self._in_flight.items():
            for key, _ in held if name not in self._prefilled else ():
                counts[key] = counts.get(key, 0) + 1
        assert counts == self._computing
        assert self._prefilled <= self._in_flight.keys()
        self._fronts.check_integrity(self._spans)
        assert not (self._complete and self._guessed)
