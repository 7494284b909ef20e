"""E2's checkpoint: what is read back places as what was written did, and bad data is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.model import NO_GAP, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement import e2_checkpoint
from prism_ray.placement.base import CheckpointError, UnknownCheckpoint
from prism_ray.placement.e2 import E2
from prism_ray.telemetry import codec

ROOM = ReplicaCapacity(pool_tokens=5_000, max_running=64, prefill_ahead_tokens=8_192)
ROOMY = 10**6
REPLICAS = "abc"
WINDOW_S = 100.0

Served = tuple[tuple[int, ...], int, float]
"""Segments of a prompt, tokens generated, seconds until the next one."""

lives = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple),
        st.integers(1, 30),
        st.floats(0.01, 15.0),
    ),
    max_size=40,
)


def new_e2(replicas: str = REPLICAS, now_s: float = 0.0, pool: int = 5_000) -> E2:
    e2 = E2({"window_s": WINDOW_S, "prefill_tokens_per_s": 1_000, "explore_until": 0})
    for name in replicas:
        e2.join(name, ReplicaCapacity(pool, 64, 8_192), None, now_s)
    return e2


def ticket(name: str, segments: tuple[int, ...]) -> Ticket:
    parts = tuple(Segment(b"s%d" % n, 100 * (n + 1)) for n in segments)
    return Ticket(name, Skeleton(None, parts, (NO_GAP,) * len(parts), 10), 0.0)


def serve(e2: E2, name: str, segments: tuple[int, ...], output: int, now_s: float) -> float:
    request = ticket(name, segments)
    path = request.skeleton.path(request.skeleton.native_order)
    e2.place(request, path, now_s)
    e2.sent(name, path, 0, now_s)
    e2.prefilled(name, now_s + 0.2)
    e2.released(name, output, now_s + 0.2 + 0.01 * output)
    return now_s + 0.2 + 0.01 * output


def lived(served: list[Served], pool: int = 5_000) -> tuple[E2, float]:
    e2, now_s = new_e2(pool=pool), 0.0
    for number, (segments, output, pause_s) in enumerate(served):
        now_s = serve(e2, f"q{number}", segments, output, now_s) + pause_s
    e2._expire(now_s)
    return e2, now_s


def through_the_store(value: dict[str, Any]) -> dict[str, Any]:
    return codec.decode(codec.encode(value))


def restored(value: dict[str, Any], now_s: float, elapsed_s: float = 0.0, pool: int = 5_000) -> E2:
    saved = e2_checkpoint.read(value)
    e2 = new_e2(now_s=now_s, pool=pool)
    e2_checkpoint.restore_costs(e2, saved)
    for name, own in saved.replicas.items():
        assert e2_checkpoint.restore_replica(e2, name, own, now_s, elapsed_s)
    e2.check_integrity()
    return e2


def histogram(e2: E2) -> dict[tuple[tuple[bytes, ...], str], int]:
    """Uses of the last H of each front of a path, by replica."""
    found: dict[tuple[tuple[bytes, ...], str], int] = {}
    for node in e2.forest.walk():
        front: tuple[bytes, ...] = ()
        above = node
        while above.parent is not None:
            front = (*(atom.id for atom in above.atoms), *front)
            above = above.parent
        for replica, count in node.shared.items():
            found[front, replica] = count
    return found


def held(e2: E2) -> dict[str, int]:
    return {name: shelf.tokens for name, shelf in e2.forest.shelves.items()}


class TestRoundTrip:
    @given(lives)
    @settings(max_examples=60, deadline=None)
    def test_what_is_read_back_is_what_was_written(self, served: list[Served]) -> None:
        # With room for all: which of two prefixes was used last within one sum is not kept.
        before, now_s = lived(served, pool=ROOMY)
        value = through_the_store(e2_checkpoint.checkpoint(before, now_s))
        after = restored(value, now_s, pool=ROOMY)
        assert histogram(after) == histogram(before)
        assert held(after) == held(before)
        assert after.costs.fit.time == before.costs.fit.time
        assert after.costs.decode.token_s == before.costs.decode.token_s
        for name, book in before._books.by_name.items():
            other = after._books.by_name[name]
            assert other.load_s == pytest.approx(book.load_s)  # type: ignore[attr-defined]
            assert other.decode_s == pytest.approx(book.decode_s)  # type: ignore[attr-defined]
            assert (other.served, other.placed) == (book.served, book.placed)
            assert other.joined_s == pytest.approx(book.joined_s)

    @given(lives, st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple))
    @settings(max_examples=60, deadline=None)
    def test_the_next_request_goes_where_it_would_have_gone(
        self, served: list[Served], segments: tuple[int, ...]
    ) -> None:
        before, now_s = lived(served, pool=ROOMY)
        value = through_the_store(e2_checkpoint.checkpoint(before, now_s))
        after = restored(value, now_s, pool=ROOMY)
        request = ticket("next", segments)
        path = request.skeleton.path(request.skeleton.native_order)
        here, there = (
            e2.rule.choose(e2.forest.match(path), 10**3, now_s) for e2 in (before, after)
        )
        assert (there[0].replica, there[1], there[2]) == (here[0].replica, here[1], here[2])

    @given(lives, st.floats(0.0, 2 * WINDOW_S))
    @settings(max_examples=40, deadline=None)
    def test_time_away_counts_and_all_of_it_expires(
        self, served: list[Served], elapsed_s: float
    ) -> None:
        before, now_s = lived(served)
        value = e2_checkpoint.checkpoint(before, now_s)
        after = restored(value, 0.0, elapsed_s)
        before._expire(now_s + elapsed_s)
        ages = [now_s + elapsed_s - use.at_s for use in before.forest._uses if use.live]
        young = [-use.at_s for use in after.forest._uses if use.live]
        # Within one sum, times are spread evenly: only its ends are exact.
        assert len(young) <= sum(row[2] for row in value["uses"])
        assert bool(young) == bool(ages) or not ages
        assert max(young, default=0.0) < WINDOW_S
        after._expire(WINDOW_S)
        after.check_integrity()
        assert not histogram(after)

    def test_uses_older_than_those_already_there_expire_first(self) -> None:
        before, now_s = lived([((1,), 5, 1.0)] * 5)
        saved = e2_checkpoint.read(e2_checkpoint.checkpoint(before, now_s))
        after = new_e2(now_s=1000.0)
        serve(after, "early", (2,), 5, 1000.0)
        for name, own in saved.replicas.items():
            e2_checkpoint.restore_replica(after, name, own, 1000.0, 50.0)
        after._expire(1000.0 + WINDOW_S - 40.0)
        after.check_integrity()
        assert sum(use.live for use in after.forest._uses) == 1

    def test_what_waits_unsent_is_not_counted_since_it_comes_again(self) -> None:
        e2 = new_e2()
        request = ticket("waits", (1, 2))
        e2.place(request, request.skeleton.path(request.skeleton.native_order), 1.0)
        assert not histogram(restored(e2_checkpoint.checkpoint(e2, 2.0), 2.0))

    def test_a_cost_model_that_knows_more_stays(self) -> None:
        old, now_s = lived([((1,), 5, 1.0)] * 3)
        new, _ = lived([((1,), 5, 1.0)] * 9)
        saved = e2_checkpoint.read(e2_checkpoint.checkpoint(old, now_s))
        time = new.costs.fit.time
        e2_checkpoint.restore_costs(new, saved)
        assert new.costs.fit.time == time

    def test_a_replica_that_did_not_join_gets_nothing(self) -> None:
        old, now_s = lived([((1,), 5, 1.0)])
        saved = e2_checkpoint.read(e2_checkpoint.checkpoint(old, now_s))
        own = saved.replicas["a"]
        assert not e2_checkpoint.restore_replica(new_e2("b"), "a", own, 0.0, 0.0)


class TestBounds:
    def test_it_fits_the_store_whatever_was_served(self) -> None:
        e2 = E2({"window_s": 1e6, "replicate": False})
        for number in range(64):
            e2.join(f"llm#replica#{number:08d}", ROOM, None, 0.0)
        for number in range(10_000):
            parts = tuple(Segment(b"%032d" % (number * 8 + n), 10) for n in range(8))
            request = Ticket(f"q{number}", Skeleton(None, parts, (NO_GAP,) * 8, 10), 0.0)
            path = request.skeleton.path(request.skeleton.native_order)
            replica = f"llm#replica#{number % 64:08d}"
            book = e2._books.by_name[replica]
            book.count(e2.forest.use(path, replica, number / 10, 1.0))  # type: ignore[attr-defined]
        value = e2_checkpoint.checkpoint(e2, 1000.0)
        assert len(codec.encode(value)) < codec.MAX_BYTES - 16_384  # room for an envelope
        e2_checkpoint.read(value)
        assert len(value["uses"]) < 1000
        # What has no path there is load of its replica still.
        assert sum(row[2] for row in value["uses"]) == e2_checkpoint.USES_MAX
        assert sum(row[3] for row in value["uses"]) == pytest.approx(e2_checkpoint.USES_MAX)

    def test_load_without_its_path_comes_back_and_leaves_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(e2_checkpoint, "BYTES_MAX", 0)
        before, now_s = lived([((n % 3,), 5, 1.0) for n in range(9)])
        value = e2_checkpoint.checkpoint(before, now_s)
        monkeypatch.undo()
        after = restored(value, now_s)
        for book, other in zip(before.rule.books, after.rule.books, strict=True):
            assert (other.loads, other.load_s) == (book.loads, pytest.approx(book.load_s))
        after._expire(now_s + WINDOW_S)
        after.check_integrity()
        assert not any(book.loads for book in after.rule.books)

    def test_a_load_of_which_only_a_part_is_kept_is_a_load_of_that_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(e2_checkpoint, "USES_MAX", 10)
        before, now_s = new_e2("a"), 40.0
        path = ticket("q", (1,)).skeleton.path((0,))
        book = before.rule.books[0]
        for second in range(40):
            book.count(before.forest.use(path, "a", float(second), 1.0))
        after = restored(e2_checkpoint.checkpoint(before, now_s), now_s)
        assert after.rule.books[0].loads == 10
        load_s = book.scaled_load_s(WINDOW_S, now_s)
        assert after.rule.books[0].scaled_load_s(WINDOW_S, now_s) == pytest.approx(load_s)


def changed(value: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(value)
    change(value)
    return value


class TestBadData:
    @pytest.fixture
    def value(self) -> dict[str, Any]:
        e2, now_s = lived([((1, 2), 5, 1.0), ((1, 3), 5, 1.0), ((4,), 3, 1.0)])
        return e2_checkpoint.checkpoint(e2, now_s)

    def test_another_version_is_told_from_what_is_malformed(self, value: dict[str, Any]) -> None:
        with pytest.raises(UnknownCheckpoint):
            e2_checkpoint.read({**value, "version": 2})

    @pytest.mark.parametrize(
        "change",
        [
            lambda v: v.pop("costs"),
            lambda v: v["costs"].update(theta=[1.0]),
            lambda v: v["costs"].update(theta=[float("nan")] * 4),
            lambda v: v["costs"].update(factor=[0.0, 3]),
            lambda v: v["costs"]["spread"].__setitem__(5, -1.0),
            lambda v: v["costs"]["decode"].__setitem__(1, [0.0, 9]),
            lambda v: v["replicas"].append(v["replicas"][0]),
            lambda v: v["replicas"][0].__setitem__(2, True),
            lambda v: v["atoms"][0].__setitem__(0, 0),
            lambda v: v["atoms"][0].__setitem__(1, b"x" * 65),
            lambda v: v["atoms"][0].__setitem__(2, -1),
            lambda v: v["uses"][0].__setitem__(0, len(v["atoms"])),
            lambda v: v["uses"][0].__setitem__(1, 99),
            lambda v: v["uses"][0].__setitem__(2, 10**9),
            lambda v: v["uses"][0].__setitem__(3, float("inf")),
            lambda v: v["uses"][0].__setitem__(6, v["uses"][0][5] + 1),
            lambda v: v["uses"][0].pop(),
            lambda v: v.update(uses=None),
        ],
    )
    def test_what_is_malformed_is_refused(
        self, value: dict[str, Any], change: Callable[[dict[str, Any]], object]
    ) -> None:
        e2_checkpoint.read(value)
        with pytest.raises(CheckpointError):
            e2_checkpoint.read(changed(value, change))

    @given(st.binary(max_size=200))
    def test_noise_is_refused(self, noise: bytes) -> None:
        try:
            data = msgpack.unpackb(noise, strict_map_key=False)
        except Exception:
            data = noise
        with pytest.raises(CheckpointError):
            e2_checkpoint.read(data)
