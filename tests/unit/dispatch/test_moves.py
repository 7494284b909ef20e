"""Which waiting requests are looked at again where their home has no credit."""

from __future__ import annotations

from collections.abc import Sequence

from prism_ray.dispatch import Dispatcher
from prism_ray.dispatch.homes import MOVES_MAX
from prism_ray.model import NO_GAP, Completion, Outcome, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement import Choice, Path
from prism_ray.placement.books import Book
from prism_ray.placement.simple import SimpleHoming
from prism_ray.policies import make_scheduler

ONE = ReplicaCapacity(pool_tokens=10_000, max_running=1, prefill_ahead_tokens=1_000)


def ticket(name: str) -> Ticket:
    return Ticket(name, Skeleton(None, (Segment(name.encode(), 10),), (NO_GAP,), 10), 0.0)


class Told(SimpleHoming):
    """The home is in the request's name; remembers who was asked about, and moves nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def choose(self, ticket: Ticket, path: Path, books: list[Book]) -> Choice:
        return Choice(ticket.request_id.split()[0], "told")

    def move(self, ticket: Ticket, path: Path, ready: Sequence[str], now_s: float) -> None:
        self.asked.append(ticket.request_id)


def busy(replicas: int) -> tuple[Dispatcher, Told]:
    """All but ``free`` have what they can take, and one more that waits."""
    placement = Told()
    d = Dispatcher(make_scheduler("fcfs"), placement, "e")
    d.join("free", "i", ONE)
    for n in range(replicas):
        d.join(f"r{n}", "i", ONE)
        d.submit(ticket(f"r{n} first"))
    d.round(0.0)
    for n in range(replicas):
        d.submit(ticket(f"r{n} old"))
    placement.asked.clear()
    return d, placement


def test_the_newest_that_stays_keeps_nobody_else_from_being_asked() -> None:
    d, placement = busy(1)
    d.submit(ticket("r0 new"))
    d.round(1.0)
    assert placement.asked == ["r0 new", "r0 old"]


def test_a_round_asks_about_so_many_and_the_next_one_about_others() -> None:
    d, placement = busy(MOVES_MAX + 20)
    d.round(1.0)
    first = placement.asked[:]
    assert len(first) == MOVES_MAX
    placement.asked.clear()
    d.round(2.0)
    assert set(first) | set(placement.asked) == {f"r{n} old" for n in range(MOVES_MAX + 20)}
    d.check_integrity()


def test_a_replica_that_gets_its_turn_is_out_of_the_question() -> None:
    d, placement = busy(2)
    assert d.completed("r0", Completion("r0 first", 0, Outcome.FINISHED))
    d.round(1.0)
    assert placement.asked == ["r1 old"]
