"""One window over many replicas: what is everybody's, and what each replica has of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from prism_ray.dispatch import Dispatch, Dispatcher
from prism_ray.model import (
    NO_GAP,
    Completion,
    Decision,
    Lane,
    Outcome,
    ReplicaCapacity,
    Segment,
    Skeleton,
    Ticket,
)
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler

ROOMY = ReplicaCapacity(pool_tokens=1_000_000, max_running=1_000, prefill_ahead_tokens=1_000_000)
TIGHT = ReplicaCapacity(pool_tokens=1_000_000, max_running=1_000, prefill_ahead_tokens=300)
HOT_AND_COLD = {"batch_max": 8, "q_cold": 2}


def ticket(name: str, document: str, tokens: int = 200) -> Ticket:
    segments = (Segment(document.encode(), tokens, run=0, label=document),)
    return Ticket(name, Skeleton(None, segments, (NO_GAP,), 10), 0.0, max_new_tokens=1)


def cluster(
    replicas: Mapping[str, ReplicaCapacity],
    placement: str = "e2",
    policy: str = "qas",
    **params: Any,
) -> Dispatcher:
    # A few requests say nothing about balance: homes are where the prefix is.
    calm = dict.fromkeys(("rebalance", "replicate", "spill", "decode_balance"), False)
    options = calm if placement == "e2" else {}
    d = Dispatcher(make_scheduler(policy, params), make_placement(placement, options), "e1")
    for name, capacity in replicas.items():
        d.join(name, "life", capacity, 0.0)
    return d


def decisions(dispatches: list[Dispatch]) -> dict[str, list[Decision]]:
    return {dispatch.plan.replica: list(dispatch.decisions) for dispatch in dispatches}


def finish(d: Dispatcher, replica: str, name: str) -> None:
    d.prefill_ended(replica, name, 0)
    assert d.completed(replica, Completion(name, 0, Outcome.FINISHED, 210, 0, 1))


def give_homes(d: Dispatcher, documents: str) -> dict[str, str]:
    """Each document is cached on a replica; returns the homes."""
    homes = {}
    for n, document in enumerate(documents):
        d.submit(ticket(f"first {document}", document))
        (dispatch,) = d.round(0.1 * (n + 1))
        homes[document] = dispatch.plan.replica
        finish(d, dispatch.plan.replica, f"first {document}")
    return homes


class TestCredit:
    def test_the_replica_with_most_free_credit_is_served_first(self) -> None:
        """What both want goes where there is most room, dispatch by dispatch."""
        loose = replace(TIGHT, prefill_ahead_tokens=900)
        d = cluster({"a": TIGHT, "b": loose}, placement="least-loaded")
        for n in range(12):
            d.submit(ticket(f"q{n}", f"doc{n}"))
        went = {r: len(own) for r, own in decisions(d.round(1.0)).items()}
        assert went == {"a": 2, "b": 5}
        homed = cluster({"a": TIGHT, "b": loose})
        for n in range(12):
            homed.submit(ticket(f"q{n}", f"doc{n}"))
        assert [dispatch.plan.replica for dispatch in homed.round(1.0)] == ["b", "a"]

    def test_one_without_credit_keeps_nobody_elsewhere_waiting(self) -> None:
        d = cluster({"a": TIGHT, "b": TIGHT})
        homes = give_homes(d, "xy")
        assert len(set(homes.values())) == 2
        for n in range(40):
            d.submit(ticket(f"x{n}", "x"))
        d.submit(ticket("y0", "y"))
        sent = decisions(d.round(10.0))
        assert [x.request_id for x in sent[homes["y"]]] == ["y0"]
        assert d.seats[homes["x"]].credit_tokens == 0
        assert d.seats[homes["y"]].credit_tokens > 0
        assert len(d) == 41 - sum(map(len, sent.values()))
        d.check_integrity()

    def test_what_is_cached_at_one_replica_costs_credit_at_another(self) -> None:
        d = cluster({"a": TIGHT, "b": TIGHT})
        homes = give_homes(d, "x")
        here = d.seats[homes["x"]]
        there = next(seat for name, seat in d.seats.items() if seat is not here)
        path = ticket("q", "x").skeleton.path((0,))
        assert here.match(path).cached_tokens == 200
        assert there.match(path).cached_tokens == 0
        d.submit(ticket("q", "x"))
        (dispatch,) = d.round(10.0)
        assert dispatch.decisions[0].predicted_cached_tokens == 200
        assert here.unprefilled_tokens == 10


@pytest.mark.parametrize("placement", ["e2", "least-loaded", "consistent-hash"])
def test_every_replicas_dispatches_have_the_hot_share_and_its_cold_slots(placement: str) -> None:
    d = cluster(dict.fromkeys("abc", TIGHT), placement, **HOT_AND_COLD)
    lanes: dict[str, list[Lane]] = defaultdict(list)
    for n in range(300):
        d.submit(ticket(f"q{n}", f"doc{n % 23}"))
    now = 1.0
    while len(d):
        now += 0.05
        for replica, own in decisions(d.round(now)).items():
            for decision in own:
                lanes[replica].append(decision.lane)
                finish(d, replica, decision.request_id)
    assert len(lanes) == 3
    for own in lanes.values():
        runs = [own[i : i + 8] for i in range(len(own) - 7)]
        assert runs
        assert {run.count(Lane.COLD) for run in runs} == {2}


def test_the_oldest_at_home_takes_a_replicas_cold_slot_whatever_is_hot_elsewhere() -> None:
    d = cluster({"a": TIGHT, "b": TIGHT}, **HOT_AND_COLD)
    homes = give_homes(d, "xy")
    d.submit(ticket("old x", "x", tokens=201))  # another prompt than the hot one
    d.submit(ticket("old y", "y"))
    for n in range(30):
        d.submit(ticket(f"x{n}", "x"))
    found: dict[str, Decision] = {}
    now = 10.0
    while "old x" not in found or "old y" not in found:
        now += 0.05
        for replica, own in decisions(d.round(now)).items():
            for decision in own:
                found[decision.request_id] = decision
                finish(d, replica, decision.request_id)
        assert now < 13.0, "nobody starves at any replica"
    assert found["old y"].replica == homes["y"]
    d.check_integrity()


def test_demand_tables_have_the_replicas_own_active_set_and_everybodys_queue() -> None:
    weights = {"w_active": 10_000.0, "w_next": 100.0, "w_global": 1.0, "predict_next": False}
    d = cluster({"a": TIGHT, "b": TIGHT}, batch_max=1, q_cold=0, **weights)
    homes = give_homes(d, "xy")
    other = "b" if homes["x"] == "a" else "a"
    for name in ("x0", "x1", "y0"):
        d.submit(ticket(name, name[0]))
    tables = {dispatch.plan.replica: dispatch.plan.demand for dispatch in d.round(10.0)}

    def rows(replica: str) -> dict[bytes, float]:
        return {row.segment: row.priority for row in tables[replica].rows}

    # Taken before the batch moves: queued are both x and y, next is the replica's own batch.
    assert rows(homes["x"])[b"x"] == 100.0 + 2
    assert rows(other)[b"y"] == 100.0 + 1
    assert rows(other).get(b"x", 2.0) == 2.0, "not active and not next here"
    d.submit(ticket("x2", "x"))
    (later,) = d.round(11.0)
    assert later.plan.replica == homes["x"]
    row = next(r for r in later.plan.demand.rows if r.segment == b"x")
    assert row.priority == 10_000.0 * 2 + 100.0 + 1, "two of its own are active there"


def test_what_is_hot_is_so_for_the_whole_window() -> None:
    """Scores are everybody's: a bucket is hot by all of its requests, wherever they are at home."""
    d = cluster({"a": TIGHT, "b": TIGHT}, placement="round-robin")
    for name, document in (("lonely", "u"), ("h0", "h"), ("h1", "h"), ("h2", "h")):
        d.submit(ticket(name, document))
    first = {own[0].request_id[0] for own in decisions(d.round(1.0)).values()}
    assert first == {"h"}


class TestPreblesGroups:
    def test_each_replica_groups_by_its_own_cache(self) -> None:
        d = cluster({"a": ROOMY, "b": ROOMY}, policy="preble-groups")
        homes = give_homes(d, "xy")
        for n in range(6):
            d.submit(ticket(f"x{n}", "x"))
            d.submit(ticket(f"y{n}", "y"))
        for replica, own in decisions(d.round(10.0)).items():
            assert {homes[x.request_id[0]] for x in own} == {replica}
            assert {x.score for x in own} == {10}, "95% of 210 tokens are cached where they are"
        d.check_integrity()

    def test_shares_are_kept_for_each_replica(self) -> None:
        """Of eleven dispatches of a replica ten are of the top group and one of the lowest."""
        d = cluster({"a": TIGHT, "b": TIGHT}, policy="preble-groups")
        homes = give_homes(d, "xy")
        for n in range(60):
            for document in "xy":
                d.submit(ticket(f"{document}{n}", document))
                d.submit(ticket(f"cold{document}{n}", f"{document}{n}", tokens=40))
        went: dict[str, list[float]] = defaultdict(list)
        now = 10.0
        while min((len(own) for own in went.values()), default=0) < 44:
            now += 0.05
            for replica, own in decisions(d.round(now)).items():
                for decision in own:
                    went[replica].append(decision.score)
                    finish(d, replica, decision.request_id)
        assert set(went) == set(homes.values())
        for scores in went.values():
            assert [scores[i : i + 11].count(10) for i in (0, 11, 22, 33)] == [10, 10, 10, 10]

    def test_what_one_replica_owes_a_group_is_no_others_matter(self) -> None:
        """Of a replica's dispatches the sixth is of the lowest group, whatever another one sent."""
        five, six = (replace(ROOMY, max_running=n) for n in (5, 6))
        d = cluster({"a": five, "b": six}, "round-robin", "preble-groups")
        went = {}

        def round_of(replica: str, now_s: float) -> Dispatch:
            for name, seat in d.seats.items():
                seat.draining = name != replica
            (dispatch,) = d.round(now_s)
            return dispatch

        for n, replica in enumerate("ab"):  # the document is cached at both
            d.submit(ticket(f"first {replica}", "x"))
            round_of(replica, n + 1.0)
            finish(d, replica, f"first {replica}")
        for n in range(12):
            d.submit(ticket(f"x{n}", "x"))
            d.submit(ticket(f"cold {n}", f"doc{n}"))
        for n, replica in enumerate("ab"):
            went[replica] = [x.score for x in round_of(replica, n + 3.0).decisions]
        assert went == {"a": [10] * 5, "b": [10] * 5 + [1]}
