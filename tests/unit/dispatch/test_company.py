"""Rules between tenants at one replica; with one tenant none of them applies."""

from __future__ import annotations

from prism_ray.dispatch import Dispatch, Dispatcher
from prism_ray.dispatch.company import REMEMBERED_ARRIVALS, Company
from prism_ray.model import (
    NO_GAP,
    Completion,
    Outcome,
    ReplicaCapacity,
    Segment,
    Skeleton,
    Ticket,
)
from prism_ray.placement import make_placement
from prism_ray.policies import make_fair_scheduler


def ticket(name: str, private: int = 99, document: str = "") -> Ticket:
    """A request of the tenant whose letter its name begins with."""
    segments = (Segment(f"{name[0]} {document or name}".encode(), 1, run=0),)
    return Ticket(name, Skeleton(None, segments, (NO_GAP,), private), 0.0, tenant=name[0].encode())


def dispatcher(*, ahead: int = 100_000, slots: int = 64) -> Dispatcher:
    made = Dispatcher(make_fair_scheduler("fcfs"), make_placement("single"), epoch="e")
    made.join("r", "i", ReplicaCapacity(10**9, slots, ahead))
    return made


def submit(target: Dispatcher, tenant: str, number: int, private: int = 99) -> None:
    for index in range(number):
        target.submit(ticket(f"{tenant}{index}", private))


def names(dispatches: list[Dispatch]) -> list[str]:
    return [entry.request_id for d in dispatches for entry in d.plan.entries]


class TestGuests:
    def test_a_backlog_follows_a_guest_only_as_far_as_it_doubles_its_prefill(self) -> None:
        d = dispatcher()
        submit(d, "a", 20)
        submit(d, "b", 1, private=299)
        # b is served when its turn comes; behind its 300 tokens go three requests of 100.
        sent = names(d.round(1.0))
        assert sent[sent.index("b0") :] == ["b0", "a1", "a2", "a3"]
        d.check_integrity()

    def test_the_backlog_goes_on_when_the_guests_prefill_has_ended(self) -> None:
        d = dispatcher()
        submit(d, "a", 20)
        submit(d, "b", 1)
        d.round(1.0)
        assert names(d.round(2.0)) == []
        d.prefill_ended("r", "b0", 0)
        assert len(names(d.round(3.0))) == 18
        d.check_integrity()

    def test_another_guest_may_go_where_the_backlog_stays_back(self) -> None:
        d = dispatcher()
        submit(d, "a", 20)
        submit(d, "b", 1)
        d.round(1.0)
        submit(d, "c", 1)
        assert "c0" in names(d.round(2.0))

    def test_a_guest_that_leaves_is_no_guest_any_more(self) -> None:
        d = dispatcher()
        submit(d, "a", 20)
        submit(d, "b", 1)
        d.round(1.0)
        d.completed("r", Completion("b0", 0, Outcome.ABORTED))
        assert len(names(d.round(2.0))) == 18
        d.check_integrity()

    def test_one_tenant_has_no_guests(self) -> None:
        d = dispatcher()
        submit(d, "a", 20)
        assert len(names(d.round(1.0))) == 20
        assert d.seats["r"].guest_tokens == 0


class TestSlots:
    def test_a_tenant_alone_has_all_slots(self) -> None:
        d = dispatcher(slots=16)
        submit(d, "a", 40)
        assert len(names(d.round(1.0))) == 16

    def test_with_others_about_an_eighth_stays_free_for_who_has_little(self) -> None:
        d = dispatcher(slots=16)
        submit(d, "b", 1)
        d.round(0.0)
        d.completed("r", Completion("b0", 0, Outcome.FINISHED))
        submit(d, "a", 40)
        assert len(names(d.round(1.0))) == 14
        for number in range(3):
            d.submit(ticket(f"b{number + 1}"))
        assert names(d.round(2.0)) == ["b1", "b2"]

    def test_equal_tenants_fill_all_slots(self) -> None:
        d = dispatcher(slots=16)
        submit(d, "a", 40)
        submit(d, "b", 40)
        sent = names(d.round(1.0))
        assert len(sent) == 16
        assert sum(name[0] == "a" for name in sent) == 8

    def test_who_had_to_stay_back_has_no_claim_on_what_others_got_meanwhile(self) -> None:
        d = dispatcher(slots=16)
        submit(d, "b", 1)
        submit(d, "a", 60)
        for name in names(d.round(0.0)):
            d.prefill_ended("r", name, 0)
        d.round(0.1)
        # a stays back at its 13; b comes, is served and ends, many times.
        for number in range(50):
            d.submit(ticket(f"b{number + 1}"))
            (name,) = names(d.round(1.0 + number))
            d.prefill_ended("r", name, 0)
            d.completed("r", Completion(name, 0, Outcome.FINISHED))
        for name in list(d.seats["r"].sent):
            d.completed("r", Completion(name, 0, Outcome.FINISHED))
        d.submit(ticket("b99"))
        assert "b99" in names(d.round(99.0))[:2]


def test_a_tenant_that_stays_away_is_not_expected_for_ever() -> None:
    company = Company()
    company.arrive(ticket("b0"))
    company.leave(ticket("b0"))
    for number in range(REMEMBERED_ARRIVALS - 1):
        company.arrive(ticket(f"a{number}"))
        assert len(company) == 2
    company.arrive(ticket("a"))
    assert len(company) == 1


def test_one_that_waits_for_long_keeps_nobody_else_remembered() -> None:
    company = Company()
    company.arrive(ticket("b0"))
    for number in range(4 * REMEMBERED_ARRIVALS):
        stranger = Ticket("s", ticket("s").skeleton, 0.0, tenant=str(number).encode())
        company.arrive(stranger)
        company.leave(stranger)
    assert len(company) <= REMEMBERED_ARRIVALS + 1


def test_a_tenant_that_still_waits_is_expected() -> None:
    company = Company()
    company.arrive(ticket("b0"))
    for number in range(3 * REMEMBERED_ARRIVALS):
        company.arrive(ticket(f"a{number}"))
    assert len(company) == 2
