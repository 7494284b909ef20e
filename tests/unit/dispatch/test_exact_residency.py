"""What QAS knows of a cache from its engine's news: exact, or degraded until a snapshot has come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prism_ray.cache_news import CacheNews, Span
from prism_ray.dart import NodeKind
from prism_ray.dart.anchors import AnchorMark, path_keys
from prism_ray.dispatch import ExactResidency, ResidencyState
from prism_ray.dispatch import exact_residency as module
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.model import Atom
from prism_ray.scheduling import Match

EXACT, DEGRADED = ResidencyState.EXACT, ResidencyState.DEGRADED
ROOM = 0


def path(names: str, tokens: int = 10) -> tuple[Atom, ...]:
    return tuple(Atom(name.encode(), tokens) for name in names)


def marks(names: str) -> list[AnchorMark]:
    ends = range(10, 10 * len(names) + 1, 10)
    keys = path_keys(path(names))
    return [
        AnchorMark(end, NodeKind.REUSABLE, b"", key) for end, key in zip(ends, keys, strict=True)
    ]


class Engine:
    """A ledger whose news go to a residency, but for those that are lost."""

    def __init__(self) -> None:
        self.ledger = CacheLedger()
        self.residency = ExactResidency()
        self.tell()

    def tell(self, *, lose: bool = False) -> None:
        for news in self.ledger.take():
            if not lose:
                self.residency.apply(news)

    def insert(self, names: str, tokens: int = 1000, *, lose: bool = False) -> None:
        self.ledger.inserted(marks(names), tokens)
        self.tell(lose=lose)

    def evict(self, names: str, start: int, *, lose: bool = False) -> None:
        self.ledger.evicted(path_keys(path(names))[-1], NodeKind.REUSABLE, start, 10 * len(names))
        self.tell(lose=lose)

    def snapshot(self) -> None:
        self.ledger.snapshot_wanted = True
        self.tell()


class TestExact:
    def test_nothing_is_known_before_the_first_word(self) -> None:
        residency = ExactResidency()
        assert (residency.state, residency.wants_snapshot) == (DEGRADED, True)

    def test_whoever_hears_the_first_word_knows_all(self) -> None:
        engine = Engine()
        assert (engine.residency.state, engine.residency.wants_snapshot) == (EXACT, False)

    def test_a_match_ends_where_the_deepest_resident_span_ends(self) -> None:
        engine = Engine()
        engine.insert("abc", 25)
        assert engine.residency.match(path("abcd")) == Match(25, 25)
        assert engine.residency.match(path("abd")) == Match(20, 20)
        assert engine.residency.match(path("bc")) == Match(0, 0)

    def test_an_eviction_counts_at_once(self) -> None:
        engine = Engine()
        engine.insert("abc")
        engine.evict("abc", 24)
        assert engine.residency.match(path("abc")).cached_tokens == 24
        engine.evict("abc", 20)
        assert engine.residency.match(path("abc")).cached_tokens == 20
        assert engine.residency.tokens == 20

    def test_a_front_that_another_anchor_took_over_is_still_resident_below_it(self) -> None:
        engine = Engine()
        engine.insert("abc")
        # "b" is gone by its own name, but what hangs below it cannot be there without it.
        engine.ledger.evicted(path_keys(path("ab"))[-1], NodeKind.REUSABLE, 10, 20)
        engine.tell()
        assert engine.residency.match(path("abc")).cached_tokens == 30

    def test_a_separator_is_there_for_others_while_something_stands_behind_it(self) -> None:
        engine = Engine()
        engine.residency.send("one", path("a-b"), ROOM)
        first, _, last = path_keys(path("a-b"))
        engine.ledger.inserted(
            [
                AnchorMark(10, NodeKind.REUSABLE, b"a", first),
                AnchorMark(30, NodeKind.REUSABLE, b"b", last),
            ],
            30,
        )
        engine.tell()
        engine.residency.release("one")
        assert engine.residency.match(path("a-c")).cached_tokens == 20
        engine.ledger.evicted(last, NodeKind.REUSABLE, 15, 30)
        engine.tell()
        assert engine.residency.match(path("a-c")).cached_tokens == 10
        engine.residency.check_integrity()

    def test_what_stands_before_a_span_is_learned_whenever_a_path_through_it_is_sent(self) -> None:
        residency = ExactResidency()
        last = path_keys(path("a-b"))[-1]
        residency.apply(CacheNews(0, 0, (Span(last, 10, 30),)))
        assert residency.match(path("a-c")).cached_tokens == 0
        residency.send("one", path("a-b"), ROOM)
        residency.release("one")
        assert residency.match(path("a-c")).cached_tokens == 20
        residency.check_integrity()

    def test_what_was_sent_is_computing_until_its_prefill_ended(self) -> None:
        engine = Engine()
        engine.insert("a")
        assert engine.residency.send("one", path("abc"), ROOM) == Match(10, 10)
        assert engine.residency.match(path("abd")) == Match(10, 20)
        engine.insert("abc")
        engine.residency.prefill_ended("one")
        assert engine.residency.match(path("abd")) == Match(20, 20)
        engine.residency.check_integrity()

    def test_an_ended_prefill_alone_is_no_proof_of_residency(self) -> None:
        engine = Engine()
        engine.residency.send("one", path("ab"), ROOM)
        engine.residency.prefill_ended("one")
        assert engine.residency.match(path("ab")) == Match(0, 0)

    def test_what_never_ended_its_prefill_stops_computing_when_it_leaves(self) -> None:
        engine = Engine()
        engine.residency.send("one", path("ab"), ROOM)
        engine.residency.send("two", path("ac"), ROOM)
        engine.residency.release("one")
        assert engine.residency.match(path("ab")) == Match(0, 10)
        engine.residency.check_integrity()

    def test_a_flush_empties_it_and_leaves_it_exact(self) -> None:
        engine = Engine()
        engine.insert("ab")
        engine.ledger.flushed()
        engine.insert("c")
        engine.residency.clear()  # whoever flushed says so, too, after the engine
        assert (engine.residency.tokens, engine.residency.state) == (10, EXACT)

    def test_a_flush_that_the_engine_has_not_told_of_empties_it_all_the_same(self) -> None:
        engine = Engine()
        for _ in range(2):
            engine.insert("ab")
            engine.ledger.flushed()
            engine.residency.clear()
            assert (engine.residency.tokens, engine.residency.state) == (0, DEGRADED)
            engine.tell()
            assert (engine.residency.tokens, engine.residency.state) == (0, EXACT)
            engine.residency.check_integrity()


class TestDegraded:
    def test_a_missing_message_degrades_and_wants_a_snapshot(self) -> None:
        engine = Engine()
        engine.insert("a", lose=True)
        assert engine.residency.state is EXACT
        engine.insert("b")
        assert (engine.residency.state, engine.residency.wants_snapshot) == (DEGRADED, True)
        assert engine.residency.match(path("a")).cached_tokens == 0
        assert engine.residency.match(path("b")).cached_tokens == 10
        engine.snapshot()
        assert (engine.residency.state, engine.residency.wants_snapshot) == (EXACT, False)
        assert engine.residency.spans() == engine.ledger.spans()

    def test_a_snapshot_ends_what_was_evicted_unheard(self) -> None:
        engine = Engine()
        engine.insert("a")
        engine.insert("b")
        engine.evict("a", 0, lose=True)
        engine.insert("c")
        assert engine.residency.match(path("a")).cached_tokens == 10
        engine.snapshot()
        assert engine.residency.match(path("a")).cached_tokens == 0
        assert engine.residency.spans() == engine.ledger.spans()

    def test_a_beat_shows_that_the_last_message_is_missing(self) -> None:
        engine = Engine()
        engine.insert("a", lose=True)
        engine.residency.apply(engine.ledger.beat())
        assert engine.residency.state is DEGRADED

    def test_a_lost_flush_leaves_no_old_spans(self) -> None:
        engine = Engine()
        engine.insert("ab")
        engine.ledger.flushed()
        engine.tell(lose=True)
        engine.insert("c")
        assert engine.residency.state is DEGRADED
        assert engine.residency.match(path("ab")).cached_tokens == 0
        engine.snapshot()
        assert engine.residency.state is EXACT

    def test_what_it_does_not_know_it_predicts_from_what_was_sent(self) -> None:
        residency = ExactResidency()
        residency.send("one", path("ab"), ROOM)
        residency.prefill_ended("one")
        assert residency.match(path("abc")) == Match(20, 20)
        residency.apply(CacheNews(0, 5, (Span(b"x" * 16, 0, 3),), 0, 1))
        assert (residency.state, residency.match(path("abc"))) == (EXACT, Match(0, 0))
        residency.check_integrity()

    def test_a_guess_ends_with_the_engines_word(self) -> None:
        residency = ExactResidency()
        residency.send("one", path("ab"), ROOM)
        residency.prefill_ended("one")
        residency.apply(CacheNews(0, 5, (Span(path_keys(path("ab"))[-1], 0, 0),)))
        assert residency.match(path("ab")).cached_tokens == 10

    def test_guesses_are_bounded(self) -> None:
        residency = ExactResidency()
        for number in range(module.GUESSES_MAX // 100 + 10):
            names = tuple(Atom(b"%d %d" % (number, n), 1) for n in range(100))
            residency.send(str(number), names, ROOM)
            residency.prefill_ended(str(number))
            residency.release(str(number))
        assert len(residency._guessed) == module.GUESSES_MAX

    def test_a_snapshot_with_a_missing_part_counts_for_nothing(self) -> None:
        residency = ExactResidency()
        residency.apply(CacheNews(0, 3, (Span(b"a", 0, 1),), 0, 3))
        assert not residency.wants_snapshot
        residency.apply(CacheNews(0, 5, (Span(b"c", 0, 1),), 2, 3))
        assert (residency.state, residency.wants_snapshot) == (DEGRADED, True)

    def test_late_and_doubled_messages_change_nothing(self) -> None:
        engine = Engine()
        engine.insert("a")
        engine.residency.apply(CacheNews(0, 0, (Span(b"x", 0, 1),)))
        assert (engine.residency.spans(), engine.residency.state) == (engine.ledger.spans(), EXACT)
        engine.ledger.flushed()
        engine.tell()
        engine.residency.apply(CacheNews(0, 2, (Span(b"x", 0, 1),)))
        assert (engine.residency.spans(), engine.residency.state) == ({}, EXACT)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "evict", "flush", "snapshot"]),
            st.text("abc", min_size=1, max_size=4),
            st.integers(1, 40),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_it_equals_the_ledger_whenever_it_calls_itself_exact(
    steps: list[tuple[str, str, int, int]],
) -> None:
    engine, lost_since = Engine(), False
    for action, names, tokens, luck in steps:
        lose = luck == 0
        if action == "insert":
            engine.ledger.inserted(marks(names), tokens)
        elif action == "evict":
            start = 10 * len(names) - min(tokens, 10)
            engine.ledger.evicted(path_keys(path(names))[-1], NodeKind.REUSABLE, start, start + 10)
        elif action == "flush":
            engine.ledger.flushed()
        else:
            engine.ledger.snapshot_wanted = True
        had_news = engine.ledger.has_news
        engine.tell(lose=lose)
        lost_since = (lost_since or had_news) if lose else lost_since and not had_news
        engine.residency.check_integrity()
        if engine.residency.state is EXACT and not lost_since:
            assert engine.residency.spans() == engine.ledger.spans()
    engine.residency.apply(engine.ledger.beat())
    if engine.residency.state is EXACT:
        assert engine.residency.spans() == engine.ledger.spans()
    engine.snapshot()
    assert engine.residency.state is EXACT
    assert engine.residency.spans() == engine.ledger.spans()
