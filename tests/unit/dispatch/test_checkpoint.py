"""The view's checkpoint: a cache that is believed to hold the same, and bad data that is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.cache_news import CacheNews, Span
from prism_ray.dart.anchors import path_keys
from prism_ray.dispatch import checkpoint
from prism_ray.dispatch.residency import ResidencyState
from prism_ray.dispatch.seat import Seat
from prism_ray.model import NO_GAP, Atom, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.telemetry import codec

Path = tuple[Atom, ...]

paths = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True)


def seat(*, tells_cache: bool = False, pool: int = 10**6, life: str = "r.1") -> Seat:
    return Seat("r", life, ReplicaCapacity(pool, 64, 10**6, tells_cache=tells_cache))


def skeleton(names: list[int]) -> Skeleton:
    parts = tuple(Segment(b"s%d" % n, 10 * (n + 1)) for n in names)
    return Skeleton(None, parts, (NO_GAP,) * len(parts), 5)


def path_of(names: list[int]) -> Path:
    shape = skeleton(names)
    return shape.path(shape.native_order)


def serve(on: Seat, name: str, names: list[int], *, prefilled: bool = True) -> None:
    shape = skeleton(names)
    on.send(Ticket(name, shape, 0.0), shape.native_order)
    if prefilled:
        on.prefill_ended(name, 0)
    on.release(name, 0)


def saved(*seats: Seat) -> dict[str, Any]:
    return checkpoint.checkpoint([checkpoint.remember(each, len(seats)) for each in seats])


def carried_over(before: Seat, after: Seat) -> Seat:
    value = codec.decode(codec.encode(saved(before)))
    assert checkpoint.restore(after, checkpoint.read(value)["r"])
    after.check_integrity()
    return after


class TestPredicted:
    @given(st.lists(st.tuples(paths, st.booleans()), max_size=20), paths)
    @settings(max_examples=80, deadline=None)
    def test_what_was_believed_is_believed_again(
        self, served: list[tuple[list[int], bool]], asked: list[int]
    ) -> None:
        before = seat()
        for number, (names, prefilled) in enumerate(served):
            serve(before, f"q{number}", names, prefilled=prefilled)
        after = carried_over(before, seat(life="r.2"))
        cached = before.match(path_of(asked)).cached_tokens
        assert after.match(path_of(asked)).cached_tokens == cached

    def test_what_was_used_last_stays_longest(self) -> None:
        before = seat()
        for number in range(7):
            serve(before, f"q{number}", [number])
        # 10 + 20 + ... + 70 tokens were there; the newest two fit.
        after = carried_over(before, seat(pool=130))
        there = [after.match(path_of([n])).cached_tokens for n in range(7)]
        assert there == [0, 0, 0, 0, 0, 60, 70]

    def test_what_is_known_here_is_younger_than_what_was_remembered(self) -> None:
        before, after = seat(), seat(pool=80)
        serve(before, "old", [6])
        serve(after, "new", [4])
        carried_over(before, after)
        assert after.match(path_of([4])).cached_tokens == 50
        assert after.match(path_of([6])).cached_tokens == 0

    def test_only_so_many_rows_and_the_newest_of_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkpoint, "ROWS_MAX", 3)
        before = seat()
        serve(before, "a", [1, 2])
        serve(before, "b", [3, 4])
        after = carried_over(before, seat())
        assert after.match(path_of([3, 4])).cached_tokens == 90
        assert after.match(path_of([1, 2])).cached_tokens == 20


class TestExact:
    def known(self) -> Seat:
        on = seat(tells_cache=True)
        keys = path_keys(path_of([1, 2]))
        on.cache_news(CacheNews(1, 0, (Span(keys[0], 0, 20), Span(keys[1], 20, 50))))
        return on

    def test_what_the_engine_said_is_guessed_until_it_says_it_again(self) -> None:
        before = self.known()
        assert before.residency.state is ResidencyState.EXACT
        after = carried_over(before, seat(tells_cache=True, life="r.2"))
        assert after.match(path_of([1, 2, 3])).cached_tokens == 50
        assert after.residency.state is ResidencyState.DEGRADED
        assert after.wants_snapshot
        # The engine's own word: only the first of the two is there any more.
        spans = (Span(path_keys(path_of([1, 2]))[0], 0, 20),)
        after.cache_news(CacheNews(1, 7, spans, part=0, parts=1))
        after.check_integrity()
        assert after.residency.state is ResidencyState.EXACT
        assert after.match(path_of([1, 2, 3])).cached_tokens == 20

    def test_the_truth_is_not_overwritten(self) -> None:
        before, after = self.known(), seat(tells_cache=True)
        after.cache_news(CacheNews(1, 0, ()))
        carried_over(before, after)
        assert after.match(path_of([1, 2])).cached_tokens == 0

    def test_a_replica_that_tells_its_cache_now_gets_no_predictions(self) -> None:
        value = checkpoint.read(saved(seat()))
        assert not checkpoint.restore(seat(tells_cache=True), value["r"])


class TestBounds:
    def test_it_fits_the_store_whatever_is_cached(self) -> None:
        seats = {}
        for number in range(32):
            on = seats[number] = seat()
            on.replica = f"llm#replica#{number:08d}"
            for request in range(100):
                parts = tuple(
                    Segment(b"%032d" % ((number * 100 + request) * 4 + n), 10) for n in range(4)
                )
                shape = Skeleton(None, parts, (NO_GAP,) * 4, 5)
                on.send(Ticket(f"q{request}", shape, 0.0), shape.native_order)
                on.prefill_ended(f"q{request}", 0)
                on.release(f"q{request}", 0)
        value = saved(*seats.values())
        rows = sum(len(replica[3]) for replica in value["replicas"])
        assert rows == checkpoint.ROWS_MAX
        assert len(codec.encode(value)) < codec.MAX_BYTES - 4096

    def test_parts_that_were_made_for_fewer_replicas_are_cut(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkpoint, "ROWS_MAX", 4)
        seats = [seat(), seat()]
        for number, on in enumerate(seats):
            on.replica = f"r{number}"
            serve(on, "q", [1, 2, 3])
        value = checkpoint.checkpoint([checkpoint.remember(on, 1) for on in seats])
        read = checkpoint.read(value)
        assert [len(view.rows) for view in read.values()] == [3, 1]


class TestBadData:
    @pytest.fixture
    def value(self) -> dict[str, Any]:
        on = seat()
        serve(on, "q", [1, 2, 3])
        return saved(on)

    def test_another_version_is_told_from_what_is_malformed(self, value: dict[str, Any]) -> None:
        with pytest.raises(checkpoint.UnknownView):
            checkpoint.read({**value, "version": 99})

    @pytest.mark.parametrize(
        "change",
        [
            lambda v: v.update(replicas={}),
            lambda v: v["replicas"].append(v["replicas"][0]),
            lambda v: v["replicas"][0].__setitem__(0, 7),
            lambda v: v["replicas"][0].__setitem__(0, "x" * 1000),
            lambda v: v["replicas"][0].__setitem__(2, 1),
            lambda v: v["replicas"][0].pop(),
            lambda v: v["replicas"][0][3].extend([[-1, b"x", 1]] * 5000),
            lambda v: v["replicas"][0][3][0].__setitem__(0, 0),
            lambda v: v["replicas"][0][3][1].__setitem__(0, True),
            lambda v: v["replicas"][0][3][0].__setitem__(1, b"x" * 65),
            lambda v: v["replicas"][0][3][0].__setitem__(1, "text"),
            lambda v: v["replicas"][0][3][0].__setitem__(2, -1),
        ],
    )
    def test_what_is_malformed_is_refused(
        self, value: dict[str, Any], change: Callable[[dict[str, Any]], object]
    ) -> None:
        checkpoint.read(value)
        changed = copy.deepcopy(value)
        change(changed)
        with pytest.raises(checkpoint.ViewError):
            checkpoint.read(changed)
