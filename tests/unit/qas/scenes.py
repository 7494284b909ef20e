"""Small prompts and rounds for the tests of policies; decides nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prism_ray.model import NO_GAP, Atom, DemandTable, Pick, Segment, Skeleton, Ticket
from prism_ray.qas import Qas
from prism_ray.scheduling import Match, Round, Scheduler


class NoCache:
    """A replica about whose cache nothing is known."""

    def match(self, path: tuple[Atom, ...]) -> Match:
        return Match(0, 0)


def qas(**params: Any) -> Qas:
    return Qas(params)


def ticket(name: str, letters: str, run: int | None = 0) -> Ticket:
    """A request over one-letter segments of 10 tokens that may all trade places (``run``)."""
    segments = tuple(Segment(s.encode(), 10, run=run, label=f"doc {s}") for s in letters)
    return Ticket(name, Skeleton(None, segments, (NO_GAP,) * len(segments), 5), arrival_s=0.0)


def add(scheduler: Scheduler, *requests: str) -> None:
    """Queue requests written as ``name:segments``, such as ``q1:abc``."""
    for request in requests:
        name, letters = request.split(":")
        scheduler.add(ticket(name, letters))


def take(opened: Round, count: int, replica: str = "r") -> list[Pick]:
    """Take up to ``count`` picks for a replica."""
    picks: list[Pick] = []
    while len(picks) < count:
        pick = opened.peek(replica)
        if pick is None:
            break
        opened.take(replica, pick)
        picks.append(pick)
    return picks


def dispatch(
    scheduler: Scheduler, count: int, replica: str = "r"
) -> tuple[list[Pick], Mapping[str, DemandTable]]:
    """One round that gives up to ``count`` requests to one replica."""
    opened = scheduler.open_round({replica: NoCache()})
    picks = take(opened, count, replica)
    return picks, opened.close()


def names(picks: Iterable[Pick]) -> list[str]:
    return [pick.ticket.request_id for pick in picks]


def written(pick: Pick) -> str:
    """The segments of a pick in the order in which they are written."""
    return spelled([pick.ticket.skeleton.segments[index].id for index in pick.order])


def spelled(segments: Sequence[bytes]) -> str:
    return b"".join(segments).decode()
