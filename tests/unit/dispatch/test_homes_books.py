"""The dispatcher's check finds what a placement was not told, or was told of something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prism_ray.dispatch import Dispatcher
from prism_ray.model import NO_GAP, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement import Homing, make_placement
from prism_ray.policies import make_scheduler

ONE = ReplicaCapacity(pool_tokens=10_000, max_running=1, prefill_ahead_tokens=1_000)


def ticket(name: str) -> Ticket:
    return Ticket(name, Skeleton(None, (Segment(b"doc", 10),), (NO_GAP,), 10), 0.0)


def tell_too_much(placement: Homing) -> None:
    placement.place(ticket("nobody's"), (), 1.0)


def forget_one_sent(placement: Homing) -> None:
    placement.released("sent", None, 1.0)


def forget_one_waiting(placement: Homing) -> None:
    placement.released("waiting", None, 1.0)


@pytest.mark.parametrize("name", ["e2", "e2+", "consistent-hash", "cache-aware"])
@pytest.mark.parametrize("break_it", [tell_too_much, forget_one_sent, forget_one_waiting])
def test_a_placements_books_are_the_dispatchers(
    name: str, break_it: Callable[[Homing], None]
) -> None:
    placement = make_placement(name)
    assert isinstance(placement, Homing)
    d = Dispatcher(make_scheduler("fcfs"), placement, "e")
    d.join("r", "i", ONE)
    d.submit(ticket("sent"))
    d.submit(ticket("waiting"))
    d.round(0.0)
    assert placement.homes() == {"sent": "r", "waiting": "r"}
    d.check_integrity()
    break_it(placement)
    placement.check_integrity()
    with pytest.raises(AssertionError):
        d.check_integrity()
