"""The cold lane is a rate that survives rounds of any size, and bounds everybody's wait (A6, A7)."""

from __future__ import annotations

from itertools import count, islice, pairwise

import pytest

from loadgen.traces.zipf_hotspot import ZipfHotspot
from prism_ray.model import Lane
from prism_ray.qas import QasParams
from prism_ray.qas.lanes import Lanes

from .scenes import add, dispatch, names, qas, take

SIZES = [1, 2, 8, 32]


def lanes_of(params: QasParams, dispatches: int) -> list[Lane]:
    lanes = Lanes(params)
    return [lanes.lane(number) for number in range(dispatches)]


@pytest.mark.parametrize(("q_cold", "batch_max"), [(0, 8), (1, 3), (2, 32), (5, 7), (4, 4)])
def test_any_run_of_batch_max_dispatches_has_exactly_q_cold_cold_ones(
    q_cold: int, batch_max: int
) -> None:
    lanes = lanes_of(QasParams(q_cold=q_cold, batch_max=batch_max), 5 * batch_max)
    for start in range(4 * batch_max):
        assert lanes[start : start + batch_max].count(Lane.COLD) == q_cold


def test_cold_dispatches_are_spread_evenly() -> None:
    lanes = lanes_of(QasParams(q_cold=2, batch_max=32), 96)
    at = [number for number, lane in enumerate(lanes) if lane is Lane.COLD]
    assert {after - before for before, after in pairwise(at)} == {16}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("q_cold", [0, 2, 8])
def test_the_hot_share_holds_at_any_credit_size(size: int, q_cold: int) -> None:
    scheduler = qas(q_cold=q_cold)
    tickets = ZipfHotspot(1).tickets()
    for ticket in islice(tickets, 200):
        scheduler.add(ticket)
    lanes: list[Lane] = []
    while len(lanes) < 256:
        picks, _ = dispatch(scheduler, size)
        lanes += [pick.lane for pick in picks]
        for ticket in islice(tickets, size):
            scheduler.add(ticket)
    assert abs(lanes.count(Lane.HOT) - len(lanes) * (1 - q_cold / 32)) <= 1


@pytest.mark.parametrize("size", SIZES)
def test_who_stands_at_position_p_leaves_within_p_over_q_cold_batches(size: int) -> None:
    scheduler = qas(q_cold=2, batch_max=32)
    hot = (f"hot{i}:abc" for i in count())
    add(scheduler, *islice(hot, 40))
    add(scheduler, "lonely:xyz")
    position = len(scheduler)
    bound = -(-position // 2) * 32
    sent: list[str] = []
    while "lonely" not in sent:
        assert len(sent) < bound
        add(scheduler, *islice(hot, size))  # hot requests never run out
        sent += names(dispatch(scheduler, size)[0])
    assert len(sent) <= bound


def test_without_a_cold_lane_the_lonely_request_starves() -> None:
    scheduler = qas(q_cold=0)
    hot = (f"hot{i}:abc" for i in count())
    add(scheduler, *islice(hot, 40))
    add(scheduler, "lonely:xyz")
    sent: list[str] = []
    for _ in range(100):
        add(scheduler, *islice(hot, 8))
        sent += names(dispatch(scheduler, 8)[0])
    assert "lonely" not in sent


def test_a_cold_slot_takes_the_oldest_that_nobody_took() -> None:
    scheduler = qas(q_cold=1, batch_max=2)
    add(scheduler, "old:x", "older hot:ab", "hot:ab", "young:y")
    picks, _ = dispatch(scheduler, 4)
    assert [pick.lane for pick in picks] == [Lane.HOT, Lane.COLD, Lane.HOT, Lane.COLD]
    assert names(picks) == ["older hot", "old", "hot", "young"]


def test_each_replica_has_a_rate_of_its_own() -> None:
    scheduler = qas(q_cold=1, batch_max=2)
    add(scheduler, *(f"q{i}:a" for i in range(8)))
    lanes = {
        replica: [dispatch(scheduler, 1, replica)[0][0].lane for _ in range(2)]
        for replica in ("r1", "r2")
    }
    assert lanes == {"r1": [Lane.HOT, Lane.COLD], "r2": [Lane.HOT, Lane.COLD]}


def test_per_round_lanes_start_anew_and_small_rounds_are_all_hot() -> None:
    scheduler = qas(lanes="per_round", q_cold=1, batch_max=4)
    add(scheduler, *(f"q{i}:a" for i in range(20)))
    for _ in range(4):
        assert {pick.lane for pick in dispatch(scheduler, 2)[0]} == {Lane.HOT}
    full = dispatch(scheduler, 4)[0]
    assert [pick.lane for pick in full] == [Lane.HOT] * 3 + [Lane.COLD]


def test_replicas_in_one_round_never_get_the_same_request() -> None:
    scheduler = qas()
    add(scheduler, *(f"q{i}:a" for i in range(6)))
    opened = scheduler.open_round({"r1": _Nothing(), "r2": _Nothing()})
    offered = opened.peek("r2")
    first = take(opened, 3, "r1")
    second = take(opened, 3, "r2")
    assert offered is not None
    assert names(first) + names(second) == [f"q{i}" for i in range(6)]
    opened.close()


class _Nothing:
    def match(self, path: object) -> object:
        raise AssertionError("without the pioneer rule nobody asks the cache")
