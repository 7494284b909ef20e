"""prism as a scheduler: who goes when, what retention is told, and every ingredient switched off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import pytest

from prism_ray.dart.anchors import path_keys
from prism_ray.dart.demand import DemandState
from prism_ray.dart.node import NodeKind
from prism_ray.dart.retention import CONTINUED, make_strategy
from prism_ray.model import NO_GAP, Atom, Demand, DemandTable, Lane, Pick, Segment, Skeleton, Ticket
from prism_ray.policies import default_retention, make_scheduler
from prism_ray.prism import Prism
from prism_ray.prism.popularity import Popularity
from prism_ray.prism.ranking import Losses
from prism_ray.scheduling import Match

Path = tuple[Atom, ...]


class Cache:
    """A cache that has some paths and computes others; both may change."""

    def __init__(self, cached: Iterable[Path] = (), computing: Iterable[Path] = ()) -> None:
        self.cached = list(cached)
        self.computing = list(computing)

    def match(self, path: Path) -> Match:
        cached = max((_common(path, other) for other in self.cached), default=0)
        sent = max((_common(path, other) for other in self.computing), default=0)
        return Match(cached, max(cached, sent))


def _common(path: Path, other: Path) -> int:
    tokens = 0
    for atom, theirs in zip(path, other, strict=False):
        if atom != theirs:
            break
        tokens += atom.tokens
    return tokens


def ticket(name: str, letters: str, *, run: int | None = 0, private: int = 20) -> Ticket:
    segments = tuple(Segment(letter.encode(), 40, run=run) for letter in letters)
    return Ticket(name, Skeleton(None, segments, (NO_GAP,) * len(segments), private), 0.0)


def path(letters: str) -> Path:
    return tuple(Atom(letter.encode(), 40) for letter in letters)


def prism(*requests: str, run: int | None = 0, **params: Any) -> Prism:
    scheduler = make_scheduler("prism", params)
    assert isinstance(scheduler, Prism)
    for request in requests:
        name, letters = request.split(":")
        scheduler.add(ticket(name, letters, run=run))
    return scheduler


def dispatch(scheduler: Prism, cache: Cache, count: int = 99) -> tuple[list[Pick], DemandTable]:
    opened = scheduler.open_round({"r": cache})
    picks: list[Pick] = []
    while len(picks) < count and (pick := opened.peek("r")):
        opened.take("r", pick)
        picks.append(pick)
    table = opened.close().get("r", DemandTable(0))
    scheduler.check_integrity()
    return picks, table


def names(picks: Iterable[Pick]) -> list[str]:
    return [pick.ticket.request_id for pick in picks]


def written(pick: Pick) -> str:
    return b"".join(pick.ticket.skeleton.segments[n].id for n in pick.order).decode()


def test_what_was_sent_is_found_again_when_the_cache_has_it() -> None:
    scheduler = prism("1:abc")
    dispatch(scheduler, Cache())
    for name, letters in [("2", "xcb"), ("3", "cab")]:
        scheduler.add(ticket(name, letters))
    picks, _ = dispatch(scheduler, Cache(cached=[path("abc")]))
    assert [written(pick) for pick in picks] == ["cbx", "abc"] or written(picks[-1]) == "abc"
    assert [pick.score for pick in picks if pick.ticket.request_id == "3"] == [120]


class TestTwoReplicasWithoutHomes:
    """Each plans all that waits by its own cache; what one is given is written by its own plan."""

    caches: ClassVar = {
        "A": Cache(cached=[path("abx"), path("abz")]),
        "B": Cache(cached=[path("bax"), path("baz")]),
    }

    def known(self, *requests: str) -> Prism:
        """A policy that sent each replica what is in its cache."""
        scheduler = prism()
        for replica, letters in (("A", "abx"), ("A", "abz"), ("B", "bax"), ("B", "baz")):
            scheduler.add(ticket(f"{letters} at {replica}", letters, run=None))
            opened = scheduler.open_round({replica: Cache()})
            pick = opened.peek(replica)
            assert pick is not None
            opened.take(replica, pick)
            opened.close()
        for request in requests:
            name, letters = request.split(":")
            scheduler.add(ticket(name, letters))
        return scheduler

    @pytest.mark.parametrize("looked", ["AB", "BA"])
    @pytest.mark.parametrize(("taker", "expected"), [("A", "abx"), ("B", "bax")])
    def test_a_request_is_written_as_the_replica_planned_it_that_takes_it(
        self, looked: str, taker: str, expected: str
    ) -> None:
        scheduler = self.known("1:xab", "2:xab")
        opened = scheduler.open_round(self.caches)
        picks = {replica: opened.peek(replica) for replica in looked}
        first = picks[taker]
        assert first is not None
        opened.take(taker, first)
        second = opened.peek(taker)
        assert second is not None
        opened.take(taker, second)
        tables = opened.close()
        assert [written(pick) for pick in (first, second)] == [expected] * 2
        assert first.score == 120
        keys = path_keys(path(expected))
        assert [row.segment for row in tables[taker].rows if row.next_use >= 0] == list(keys)
        for waiting in scheduler.active():
            assert waiting.path == waiting.ticket.skeleton.path(waiting.order)

    def test_a_table_protects_nothing_for_what_another_replica_took(self) -> None:
        scheduler = self.known("1:xab", "2:zab")
        opened = scheduler.open_round(self.caches)
        for replica in ("A", "B"):
            opened.peek(replica)  # both have planned for both
        for replica in ("A", "B"):
            pick = opened.peek(replica)
            assert pick is not None
            opened.take(replica, pick)
        tables = opened.close()
        for replica, letters in (("A", "abx"), ("B", "baz")):
            planned = [row.segment for row in tables[replica].rows if row.next_use >= 0]
            assert planned == list(path_keys(path(letters)))


def test_off_it_is_fcfs_with_the_clients_orders() -> None:
    off = {"plan": False, "pioneer": False, "hints": False, "overdue_share": 0.0}
    scheduler = prism("1:xa", "2:ya", "3:xa", order="arrival", **off)
    picks, table = dispatch(scheduler, Cache(cached=[path("ya")]))
    assert names(picks) == ["1", "2", "3"]
    assert [written(pick) for pick in picks] == ["xa", "ya", "xa"]
    assert table.rows == ()


def test_match_order_sends_the_longest_resident_prefix_first() -> None:
    requests = ("1:xp", "2:yq", "3:yz")
    cache = Cache(cached=[path("yz")])
    params: dict[str, Any] = {"plan": False, "pioneer": False}
    picks, _ = dispatch(prism(*requests, run=None, order="match", **params), cache)
    assert names(picks) == ["3", "2", "1"]
    picks, _ = dispatch(prism(*requests, run=None, order="arrival", **params), cache)
    assert names(picks) == ["1", "2", "3"]


@pytest.mark.parametrize("run", [0, None])
@pytest.mark.parametrize("kept", [True, False])
def test_by_itself_it_goes_by_match_where_it_cannot_plan_and_the_cache_loses_what_comes_again(
    run: int | None, kept: bool
) -> None:
    scheduler = prism("1:ab", run=run, pioneer=False)
    dispatch(scheduler, Cache())
    scheduler.add(ticket("2", "abc", run=run))
    dispatch(scheduler, Cache(cached=[path("ab")] if kept else []))
    for name, letters in [("3", "xp"), ("4", "yz")]:
        scheduler.add(ticket(name, letters, run=run))
    picks, _ = dispatch(scheduler, Cache(cached=[path("yz")]))
    by_match = run is None and not kept
    assert names(picks) == (["4", "3"] if by_match else ["3", "4"])


def test_losses_are_a_share_of_what_is_computed_and_fade() -> None:
    losses = Losses(half_life=1)
    assert losses.share == 0
    losses.dispatch(50, 100)
    assert losses.share == 0.5
    losses.dispatch(0, 100)
    assert losses.share == pytest.approx(25 / 150)


@pytest.mark.parametrize("run", [0, None])
def test_who_shares_what_a_pioneer_computes_follows_when_it_is_there(run: int | None) -> None:
    scheduler = prism("1:ab", "2:ac", "3:xy", run=run)
    picks, _ = dispatch(scheduler, Cache(), 2)
    assert names(picks) == ["1", "3"]
    # In the next round the pioneer's prefix is still being computed.
    scheduler.add(ticket("4", "qr", run=run))
    picks, _ = dispatch(scheduler, Cache(computing=[path("ab"), path("xy")]), 1)
    assert names(picks) == ["4"]
    # Nothing else can go: then who waits goes.
    picks, _ = dispatch(prism("1:ab", "2:ac", run=run), Cache())
    assert names(picks) == ["1", "2"]
    picks, _ = dispatch(prism("1:ab", "2:ac", "3:xy", run=run, pioneer=False), Cache(), 2)
    assert names(picks) == ["1", "2"]


def test_a_share_of_the_computed_tokens_goes_to_overdue_requests() -> None:
    cache = Cache(cached=[path("h")])

    def play(share: float) -> list[Lane]:
        params: dict[str, Any] = {"order": "match", "overdue_after_tokens": 3_000}
        scheduler = prism(overdue_share=share, **params)
        for n in range(8):
            scheduler.add(ticket(f"cold{n}", "qrstuvwx"[n], private=1_460))
        lanes = []
        for n in range(120):
            scheduler.add(ticket(f"hot{n}", "h", private=500))
            picks, _ = dispatch(scheduler, cache, 1)
            assert picks[0].ticket.request_id.startswith("cold" if _cold(picks[0]) else "hot")
            lanes.append(picks[0].lane)
        return lanes

    def _cold(pick: Pick) -> bool:
        return pick.lane is Lane.COLD

    lanes = play(0.25)
    backlog = 8 * 1_500 + 500
    first = lanes.index(Lane.COLD)
    assert first >= (3_000 + backlog) // 500, "not before they are overdue"
    assert lanes.count(Lane.COLD) == 8, "all of them went in time"
    last = len(lanes) - 1 - lanes[::-1].index(Lane.COLD)
    computed = sum(1_500 if lane is Lane.COLD else 500 for lane in lanes[first:last])
    assert 0.25 * computed - 1_500 <= 7 * 1_500 <= 0.25 * computed + 2_048 + 1_500
    assert Lane.COLD not in play(0.0)


def test_retention_is_told_when_each_resident_place_is_used_next() -> None:
    scheduler = prism("1:ab", "2:xy", "3:ac", run=None, order="arrival")
    dispatch(scheduler, Cache(), 1)
    cache = Cache(cached=[path("ab")])
    scheduler.add(ticket("4", "abd", run=None))
    _, table = dispatch(scheduler, cache, 1)
    uses = {row.segment: row.next_use for row in table.rows}
    a, b = path_keys(path("ab"))
    x, y = path_keys(path("xy"))
    assert (uses[x], uses[y]) == (0, 0), "what goes now is used first"
    assert (uses[a], uses[b]) == (1, 2)
    assert path_keys(path("ac"))[1] not in uses, "nobody has it yet"
    assert default_retention("prism") == "planned"


def test_popularity_halves_by_arrivals_and_forgets() -> None:
    popularity = Popularity(half_life=10)
    popularity.arrive([b"a"])
    assert popularity.of(b"a") == pytest.approx(1)
    for _ in range(10):
        popularity.arrive([b"b"])
    assert popularity.of(b"a") == pytest.approx(0.5)
    for _ in range(60):
        popularity.arrive([b"b"])
    assert popularity.of(b"a") == 0
    assert len(popularity) == 1


def test_unknown_parameters_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'pioneers'"):
        make_scheduler("prism", {"pioneers": True})
    with pytest.raises(ValueError, match="plan"):
        make_scheduler("prism", {"plan": 1})


def test_retention_is_told_what_planned_prompts_have_used_most() -> None:
    """Places that only conversations use are left to recency."""
    continued = {CONTINUED: 1.0}
    for run, worth in ((0, {b"a": 3.0, b"b": 1.0}), (None, {})):
        scheduler = prism(run=run)
        cache = Cache()
        for n, letters in enumerate(["ab", "abc", "ax", "ay"]):
            scheduler.add(ticket(f"{n}", letters, run=run))
            dispatch(scheduler, cache)
            cache.cached.append(path(letters))
        scheduler.add(ticket("last", "zw", run=run))
        _, table = dispatch(scheduler, cache)
        told = {row.segment: row.priority for row in table.rows if row.next_use < 0}
        keys = dict(zip((b"a", b"b"), path_keys(path("ab")), strict=True))
        expected = {keys[s]: pytest.approx(uses, rel=0.01) for s, uses in worth.items()}
        assert told == (expected or continued)


def test_conversations_begin_and_end_with_most_of_the_queue_and_not_with_half_of_it() -> None:
    scheduler, told = prism(), []
    queues = [(2, 3), (1, 3), (3, 3), (2, 1), (3, 3), (1, 1), (1, 2)]  # that move, that don't
    for turn, queue in enumerate(queues):
        for run, count in zip((0, None), queue, strict=True):
            for n in range(count):
                scheduler.add(ticket(f"{turn} {run} {n}", "ab", run=run))
        _, table = dispatch(scheduler, Cache())
        told.append(any(row.segment == CONTINUED for row in table.rows))
    assert told == [False, True, True, False, False, False, True]


@pytest.mark.parametrize("replicas", [1, 4])
def test_nobody_is_overdue_for_what_other_replicas_computed(replicas: int) -> None:
    """400 tokens are computed while one waits, by one replica or by four."""
    scheduler = prism(overdue_after_tokens=250, overdue_share=1.0, order="match", pioneer=False)
    caches = {f"r{n}": Cache() for n in range(replicas)}
    homes = {f"w{n}": f"r{n % replicas}" for n in range(4)} | {"late": "r0", "last": "r0"}

    def send(*requests: str) -> list[Pick]:
        opened = scheduler.open_round(caches, homes)
        picks = []
        for replica in caches:
            while (pick := opened.peek(replica)) and pick.ticket.request_id in requests:
                opened.take(replica, pick)
                picks.append(pick)
        opened.close()
        return picks

    for n in range(4):
        scheduler.add(ticket(f"w{n}", "ab"))
    send("w0", "w1", "w2", "w3")
    for n in range(4):
        scheduler.finish(f"w{n}")
    scheduler.add(ticket("late", "cd"))
    for n in range(4):
        scheduler.add(ticket(f"w{n}", "ab"), at_head=True)
    send("w0", "w1", "w2", "w3")
    (pick,) = send("late")
    assert pick.lane is (Lane.COLD if replicas == 1 else Lane.HOT)


class _Node(NamedTuple):
    """A NodeView."""

    kind: NodeKind = NodeKind.REUSABLE
    segment: bytes | None = None
    path_key: bytes | None = None
    last_access: int = 0
    hits: int = 0
    protected: bool = False


def test_planned_retention_keeps_the_soonest_use_then_worth_then_what_is_recent() -> None:
    demand = DemandState()
    rows = (Demand(b"soon", 1.0, 0), Demand(b"late", 1.0, 7), Demand(b"worth", 2.5))
    rows = (*rows, Demand(b"more", 3.5))
    demand.apply(DemandTable(1, (*rows, Demand(CONTINUED, 1.0))))
    strategy = make_strategy("planned", demand)
    nodes = [
        _Node(NodeKind.GENERATED, last_access=1),
        _Node(path_key=b"old", last_access=2, hits=9),
        _Node(NodeKind.PRIVATE, last_access=3),
        _Node(path_key=b"recent", last_access=4),
        _Node(path_key=b"worth"),
        _Node(path_key=b"more"),
        _Node(path_key=b"late"),
        _Node(path_key=b"soon"),
    ]
    keys = [strategy.key(node) for node in nodes]
    assert keys == sorted(set(keys)), "the first goes first"
    demand.apply(DemandTable(2, rows))
    nodes.sort(key=strategy.key)
    assert [node.last_access for node in nodes[:4]] == [1, 3, 2, 4], "nothing goes on from private"


def test_it_shows_the_segments_that_are_asked_for_and_who_went_by_which_right() -> None:
    scheduler = prism("1:ab", "2:ac")
    dispatch(scheduler, Cache())
    scheduler.finish("2")
    scheduler.add(ticket("3", "ad"))
    shown = scheduler.describe(top=2)
    first = shown["segments"][0]
    assert (first["segment"], first["active"], first["queued"], first["next"]) == (
        b"a".hex(),
        1,
        1,
        2,
    )
    assert first["priority"] == pytest.approx(3, rel=0.01)
    assert len(shown["segments"]) == 2
    assert shown["lanes"] == {"r": {"dispatched": 2, "hot": 2, "cold": 0}}
    assert shown["queued"] == 1


def planned(scheduler: Prism, *caches: Cache) -> list[tuple[str, int, int, int, int]]:
    """The fronts of a round that takes nothing: labels joined, size, tokens, saved, position."""
    for name, cache in zip("rs", caches, strict=False):
        opened = scheduler.open_round({name: cache})
        opened.peek(name)
        opened.close()
    rows = scheduler.describe()["fronts"]
    return [
        (
            "".join(bytes.fromhex(name).decode() for name in row["front"]),
            row["size"],
            row["tokens"],
            row["saved_tokens"],
            row["position"],
        )
        for row in rows
    ]


class TestFronts:
    def test_those_that_will_be_written_alike_are_one_front(self) -> None:
        scheduler = prism("1:abc", "2:xyz", "3:cad", "4:q")
        assert planned(scheduler, Cache()) == [("ac", 2, 80, 80, 0)]

    def test_each_request_belongs_to_the_longest_front_that_it_shares(self) -> None:
        scheduler = prism("1:abc", "2:abd", "3:ax", "4:ay")
        # Only the first of all computes a, and only the first with both computes b.
        assert planned(scheduler, Cache()) == [("ab", 2, 80, 80, 0), ("a", 2, 40, 80, 2)]

    def test_what_is_cached_is_saved_by_the_first_too(self) -> None:
        scheduler = prism("0:a")
        dispatch(scheduler, Cache())
        scheduler.add(ticket("1", "ab"))
        scheduler.add(ticket("2", "ac"))
        assert planned(scheduler, Cache([path("a")])) == [("a", 2, 40, 80, 0)]

    def test_before_a_plan_and_without_anything_shared_there_is_none(self) -> None:
        assert prism("1:ab", "2:ac").describe()["fronts"] == []
        assert planned(prism("1:ab", "2:cd"), Cache()) == []

    def test_who_went_since_the_plan_counts_no_more(self) -> None:
        scheduler = prism("1:ab", "2:ab", "3:ab")
        planned(scheduler, Cache())
        scheduler.cancel("1")
        assert planned(scheduler) == [("ab", 2, 80, 80, 0)]

    def test_a_request_that_two_replicas_were_offered_is_told_once(self) -> None:
        scheduler = prism("1:ab", "2:ab")
        assert planned(scheduler, Cache(), Cache()) == [("ab", 2, 80, 80, 0)]

    def test_labels_and_the_system_prefix_have_names(self) -> None:
        system = Segment(b"s", 10)
        segments = (Segment(b"a", 40, label="Seine"), Segment(b"b", 40))
        scheduler = prism()
        for name in ("1", "2"):
            scheduler.add(Ticket(name, Skeleton(system, segments, (NO_GAP,) * 2, 5), 0.0))
        opened = scheduler.open_round({"r": Cache()})
        opened.peek("r")
        opened.close()
        (row,) = scheduler.describe()["fronts"]
        assert row["front"] == ["system", "Seine", b"b".hex()]
