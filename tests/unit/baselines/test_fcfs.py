"""fcfs is the trivial twin: oldest first, as written, no hints."""

from __future__ import annotations

from typing import Any

import pytest

from prism_ray.model import NO_GAP, DemandTable, Segment, Skeleton, Ticket
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Match, Scheduler


class NoCache:
    def match(self, path: Any) -> Match:
        return Match(0, 0)


def ticket(name: str) -> Ticket:
    segments = tuple(Segment(s.encode(), 10, run=0) for s in "ba")
    return Ticket(name, Skeleton(None, segments, (NO_GAP,) * 2, 5), 0.0)


def fcfs(*requests: str) -> Scheduler:
    scheduler = make_scheduler("fcfs")
    for name in requests:
        scheduler.add(ticket(name))
    return scheduler


def test_requests_leave_in_queue_order_as_written() -> None:
    scheduler = fcfs("1", "2")
    scheduler.add(ticket("0"), at_head=True)
    opened = scheduler.open_round({"r": NoCache()})
    left = []
    while pick := opened.peek("r"):
        assert pick.order == (0, 1)
        opened.take("r", pick)
        left.append(pick.ticket.request_id)
    assert left == ["0", "1", "2"]
    assert opened.close() == {"r": DemandTable(1)}
    assert len(scheduler) == 0
    scheduler.check_integrity()


def test_replicas_share_the_queue() -> None:
    scheduler = fcfs("1", "2")
    opened = scheduler.open_round({"r": NoCache(), "s": NoCache()})
    stale, pick = opened.peek("s"), opened.peek("r")
    assert stale is not None
    assert pick is not None
    opened.take("r", pick)
    with pytest.raises(ValueError, match="1 is not"):
        opened.take("s", stale)
    second = opened.peek("s")
    assert second is not None
    assert second.ticket.request_id == "2"
    assert set(opened.close()) == {"r"}
    assert [t.request_id for t in scheduler.waiting()] == ["2"]


def test_cancel_finish_and_doubled_ids() -> None:
    scheduler = fcfs("1", "2")
    assert scheduler.cancel("2")
    assert not scheduler.cancel("2")
    opened = scheduler.open_round({"r": NoCache()})
    pick = opened.peek("r")
    assert pick is not None
    opened.take("r", pick)
    opened.close()
    with pytest.raises(ValueError, match="'1'"):
        scheduler.add(ticket("1"))
    assert scheduler.describe() == {"policy": "fcfs", "queued": 0, "active": 1, "oldest": []}
    assert scheduler.finish("1")
    assert not scheduler.finish("1")


def test_parameters_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'q_cold'"):
        make_scheduler("fcfs", {"q_cold": 2})


def test_calls_out_of_turn_are_refused() -> None:
    scheduler = fcfs("1")
    opened = scheduler.open_round({"r": NoCache()})
    with pytest.raises(RuntimeError, match="round is open"):
        scheduler.cancel("1")
    with pytest.raises(ValueError, match="'s'"):
        opened.peek("s")
    opened.close()
    with pytest.raises(RuntimeError, match="closed"):
        opened.close()


def test_with_homes_a_replica_is_offered_its_own_oldest_and_nothing_else() -> None:
    scheduler = fcfs("0", "1", "2", "3")
    homes = {"0": "s", "2": "s", "3": "r"}
    opened = scheduler.open_round({"r": NoCache(), "s": NoCache()}, homes)
    got = []
    for replica in "rss":
        pick = opened.peek(replica)
        assert pick is not None
        opened.take(replica, pick)
        got.append(pick.ticket.request_id)
    assert got == ["3", "0", "2"]
    assert opened.peek("r") is None
    assert opened.peek("s") is None
    opened.close()
    assert [t.request_id for t in scheduler.waiting()] == ["1"]
