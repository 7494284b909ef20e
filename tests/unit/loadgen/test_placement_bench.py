"""The placement benchmarks count what they say, and the forest stays bounded under new prefixes."""

from __future__ import annotations

from itertools import islice

import pytest

from loadgen.bench import hot_document, placement
from loadgen.bench.hot_document import Phases, study
from prism_ray.dispatch.seat import Seat
from prism_ray.placement import Path
from prism_ray.scheduling import Match


@pytest.mark.parametrize("what", ["decisions", "lives", "fcfs"])
@pytest.mark.parametrize("tells_cache", [False, True])
def test_a_row_has_a_rate_and_the_size_of_the_forest(
    what: str, tells_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "BLOCKS", 1)
    monkeypatch.setattr(placement, "WARM_UP", 100)
    monkeypatch.setattr(placement, "BLOCK_REQUESTS", 40)
    row = placement.measure("zipf_hotspot", "e2", 3, what, 0, tells_cache=tells_cache)
    assert row.requests_per_s > 0
    assert 0 < row.forest_nodes < 1_000


def test_replicas_that_tell_their_cache_are_asked_for_what_is_exploited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matches = 0
    matched = Seat.match

    def match(seat: Seat, path: Path) -> Match:
        nonlocal matches
        matches += 1
        assert seat.exact
        return matched(seat, path)

    monkeypatch.setattr(Seat, "match", match)
    player = placement.Decisions("e2", 3, tells_cache=True)
    player.play(list(islice(placement.churn(), 200)))
    assert matches > 100
    held = [engine._seat.residency.tokens for engine in player._engines.values()]
    assert min(held) > 0, "and have it, once it came"


def test_a_placement_of_turns_cannot_be_measured_so() -> None:
    with pytest.raises(Exception, match="places no requests"):
        placement.Lives("round-robin", 2)


def test_the_forest_does_not_grow_with_the_requests_served() -> None:
    rows = placement.memory("e2", replicas=2, requests=6_000)
    late = [row.forest_nodes for row in rows[len(rows) // 2 :]]
    assert max(late) <= 1.05 * min(late), "full by half time: bounded by pools and window"
    assert max(row.uses for row in rows) <= 2 * 8 * 180 + 1


@pytest.mark.parametrize("name", ["e2", "e2+"])
def test_a_document_that_gets_hot_is_copied_and_the_copies_are_given_up(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_document, "capacity", lambda policy: 13.0)
    row = study(name, "fcfs", 4, 0, Phases(before_s=20.0, hot_s=60.0, cool_s=400.0, factor=2.5))
    assert row.replicas_hot >= 3
    assert row.p99_by_minute_s[0] < 1.0
    assert row.given_up_s is not None
    assert row.given_up_s <= 2 * 180.0


def test_under_e2_plus_a_hot_document_waits_hardly_longer_than_before() -> None:
    """The goal of five times one replica's capacity on eight replicas, for the minute after the step."""
    phases = Phases(before_s=60.0, hot_s=60.0, cool_s=5.0, factor=5.0)
    row = study("e2+", "qas", 8, 100, phases)
    assert row.second_copy_s is None or row.second_copy_s <= 5.0
    assert row.replicas_hot >= 5
    assert row.p99_by_minute_s[0] <= 1.5 * row.p99_before_s
