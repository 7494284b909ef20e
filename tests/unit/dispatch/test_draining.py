"""A replica that is stopped: nothing new goes there, what it has ends, and it is forgotten whole."""

from __future__ import annotations

import pytest

from prism_ray.dispatch import Dispatch, Dispatcher
from prism_ray.model import (
    NO_GAP,
    Completion,
    Outcome,
    ReplicaCapacity,
    Segment,
    Skeleton,
    Ticket,
)
from prism_ray.placement import make_placement, placements_of
from prism_ray.placement.e2 import E2
from prism_ray.policies import make_scheduler

CAPACITY = ReplicaCapacity(pool_tokens=50_000, max_running=8, prefill_ahead_tokens=2_000)
BOTH = ("replica-a", "replica-b")
HOMING = ("e2", "cache-aware", "prefix-affinity", "consistent-hash", "power-of-two")


def ticket(name: str, document: str = "doc") -> Ticket:
    segments = (Segment(document.encode(), 900),)
    return Ticket(name, Skeleton(None, segments, (NO_GAP,), 50), 0.0, max_new_tokens=10)


def done(name: str) -> Completion:
    return Completion(name, 0, Outcome.FINISHED, 950, 0, 10)


class Cluster:
    """A dispatcher under ``qas`` whose replicas a and b are at work."""

    def __init__(self, placement: str) -> None:
        self.d = Dispatcher(make_scheduler("qas", {}), make_placement(placement, {}), "e1")
        self.now = 0.0
        for replica in BOTH:
            self.d.join(replica, "life", CAPACITY, 0.0)

    def round(self) -> dict[str, str]:
        """Where each request went."""
        self.now += 0.05
        return _where(self.d.round(self.now))

    def submit(self, *names: str, document: str = "doc") -> None:
        for name in names:
            self.d.submit(ticket(name, document))

    def end(self, replica: str, name: str) -> bool:
        self.now += 0.05
        self.d.prefill_ended(replica, name, 0, self.now)
        return self.d.completed(replica, done(name), self.now)

    def serve(self, name: str, document: str = "doc") -> str:
        self.submit(name, document=document)
        (replica,) = self.round().values()
        assert self.end(replica, name)
        return replica


def _where(dispatches: list[Dispatch]) -> dict[str, str]:
    return {e.request_id: d.plan.replica for d in dispatches for e in d.plan.entries}


@pytest.mark.parametrize("placement", ["round-robin", "least-loaded", *HOMING])
class TestAnyPlacement:
    def test_what_waits_goes_elsewhere_and_what_it_has_ends_there(self, placement: str) -> None:
        cluster = Cluster(placement)
        home = cluster.serve("first")
        (other,) = set(BOTH) - {home}
        cluster.submit(*(f"q{n}" for n in range(20)))
        sent = cluster.round()
        running = [name for name, replica in sent.items() if replica == home]
        cluster.d.seats[home].draining = True
        for _ in range(40):
            for name, replica in cluster.round().items():
                assert replica == other
                assert cluster.end(replica, name)
            for name in [n for n, r in sent.items() if r == other]:
                del sent[name]
                assert cluster.end(other, name)
            cluster.d.check_integrity()
        assert not len(cluster.d)
        for name in running:
            assert cluster.end(home, name), "its last answers count"
        assert cluster.d.seats[home].credit_tokens == CAPACITY.prefill_ahead_tokens
        cluster.d.check_integrity()

    def test_gone_it_is_in_no_book(self, placement: str) -> None:
        cluster = Cluster(placement)
        home = cluster.serve("first")
        cluster.d.seats[home].draining = True
        cluster.submit("next")
        cluster.round()
        assert cluster.d.leave(home) == []
        assert set(cluster.d.seats) == set(cluster.d.dispatched) == set(BOTH) - {home}
        assert home not in str(placements_of(cluster.d.placement))
        assert home not in str(cluster.d.scheduler.describe(20).get("replicas", {}))
        cluster.d.check_integrity()

    def test_with_nobody_else_it_waits_and_nothing_is_lost(self, placement: str) -> None:
        cluster = Cluster(placement)
        for seat in cluster.d.seats.values():
            seat.draining = True
        cluster.submit("q0", "q1")
        assert cluster.round() == {}
        cluster.d.join("c", "life", CAPACITY, cluster.now)
        assert set(cluster.round().values()) == {"c"}
        cluster.d.check_integrity()


class TestE2:
    def test_what_only_it_had_cached_is_computed_anew_elsewhere(self) -> None:
        cluster = Cluster("e2")
        e2 = cluster.d.placement
        assert isinstance(e2, E2)
        home = cluster.serve("first")
        assert cluster.serve("again") == home
        cluster.d.seats[home].draining = True
        other = cluster.serve("third")
        assert other != home
        explained = cluster.d.explain("third", cluster.now)
        assert explained is not None
        assert explained["placement"]["kind"] == "explore"
        cluster.d.leave(home)
        assert set(e2.forest.shelves) == {other}
        assert cluster.serve("fourth") == other
        explained = cluster.d.explain("fourth", cluster.now)
        assert explained is not None
        assert explained["placement"]["kind"] == "exploit"

    def test_one_that_starts_beside_others_begins_empty_and_with_a_share(self) -> None:
        cluster = Cluster("e2")
        for number in range(120):
            cluster.serve(f"old{number}", document=f"doc{number}")
        cluster.d.join("c", "life", CAPACITY, cluster.now)
        assert cluster.d.seats["c"].residency.tokens == 0
        went = [cluster.serve(f"new{n}", document=f"other{n}") for n in range(200)]
        assert 0 < went.count("c") < 20, "5% of the exploring requests until it served 50"

    def test_one_that_comes_back_under_its_name_holds_nothing(self) -> None:
        cluster = Cluster("e2")
        home = cluster.serve("first")
        cluster.d.leave(home)
        cluster.d.join(home, "next life", CAPACITY, cluster.now)
        cluster.serve("second")
        explained = cluster.d.explain("second", cluster.now)
        assert explained is not None
        assert explained["placement"]["kind"] == "explore"
