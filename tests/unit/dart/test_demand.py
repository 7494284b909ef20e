"""The demand table's state: versions, decay by requests, bounds, and its wire form."""

from __future__ import annotations

import json

import pytest

from prism_ray.dart import DemandState, dump_hints, parse_hints
from prism_ray.model import Demand, DemandTable


def table(version: int, **rows: float) -> DemandTable:
    return DemandTable(version, tuple(Demand(s.encode(), p, 3) for s, p in rows.items()))


def test_demand_halves_every_256_requests_and_is_forgotten_after_2048():
    demand = DemandState()
    demand.apply(table(1, a=8.0))
    seen = []
    for _ in range(2048):
        seen.append(demand.priority(b"a"))
        forgotten = demand.observe_request()
    assert (seen[0], seen[255], seen[256], seen[511], seen[512]) == (8.0, 8.0, 4.0, 4.0, 2.0)
    assert seen[2047] == 8.0 / 2**7
    assert forgotten == (b"a",)
    assert (demand.priority(b"a"), demand.next_use(b"a"), len(demand)) == (0.0, -1, 0)


def test_a_new_table_replaces_the_old_one_and_resets_its_age():
    demand = DemandState()
    demand.apply(table(1, a=8.0, b=1.0, c=1.0))
    for _ in range(300):
        demand.observe_request()
    assert demand.apply(table(2, b=2.0, c=1.0, d=1.0)) == (b"a", b"b", b"d")
    assert (demand.priority(b"a"), demand.priority(b"c"), demand.age_requests) == (0.0, 1.0, 0)


def test_older_and_equal_versions_are_ignored_even_after_their_rows_were_forgotten():
    demand = DemandState(forget_after_requests=1)
    demand.apply(table(5, a=1.0))
    demand.observe_request()
    assert demand.apply(table(5, a=1.0)) is None
    assert demand.apply(table(4, a=1.0)) is None
    assert demand.priority(b"a") == 0.0
    assert demand.version == 5


def test_versions_count_within_an_epoch():
    demand = DemandState()
    demand.apply(table(90, a=1.0), epoch="first")
    assert demand.apply(table(1, b=1.0), epoch="second") == (b"a", b"b")
    assert demand.apply(table(1, b=1.0), epoch="second") is None


def test_rows_beyond_the_bound_are_dropped_from_the_tail():
    demand = DemandState(max_rows=2)
    demand.apply(table(1, a=3.0, b=2.0, c=1.0))
    assert demand.segments() == (b"a", b"b")


def test_unknown_and_private_segments_are_not_wanted():
    demand = DemandState()
    assert (demand.priority(None), demand.priority(b"x")) == (0.0, 0.0)
    assert (demand.next_use(None), demand.next_use(b"x")) == (-1, -1)


def test_hints_survive_json_and_accept_bytes():
    original = table(3, a=1.5, b=2.0)
    assert parse_hints(json.loads(json.dumps(dump_hints(original, "e")))) == (original, "e")
    assert parse_hints({"version": 1, "rows": [[b"a", 2]]}) == (
        DemandTable(1, (Demand(b"a", 2.0),)),
        "",
    )


def test_a_payload_without_rows_only_names_a_version():
    assert parse_hints({"version": 4}) is None


@pytest.mark.parametrize(
    "payload",
    [
        {"rows": []},
        {"version": "1", "rows": []},
        {"version": 1, "rows": [["zz", 1.0]]},
        {"version": 1, "rows": [["aa"]]},
        {"version": 1, "rows": 3},
        {"version": 1, "rows": [["aa", "much"]]},
        {"version": 1, "rows": [], "epoch": 3},
    ],
)
def test_malformed_hints_are_refused(payload):
    with pytest.raises(ValueError, match="hint"):
        parse_hints(payload)
