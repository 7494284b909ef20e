"""What is outstanding at each replica: placed, sent and in decode. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prism_ray.model import ReplicaCapacity
from prism_ray.placement.base import Path
from prism_ray.scheduling import CacheView


@dataclass(slots=True, eq=False)
class Book:
    """One replica. Outstanding is what was placed there and has not left on any path; ``unsent`` of it
    are the requests that wait, the newest last.
    """

    replica: str
    capacity: ReplicaCapacity
    cache: CacheView | None
    joined_s: float
    draining: bool = False
    outstanding: int = 0
    outstanding_tokens: int = 0
    unsent: dict[str, Placed] = field(default_factory=dict)
    placed: int = 0
    served: int = 0


@dataclass(slots=True, eq=False)
class Placed:
    """One request at its home."""

    book: Book
    path: Path
    prompt_tokens: int
    placed_s: float
    sent: bool = False
    prefilled: bool = False


class Books:
    """The replicas by name, and the requests placed and not released."""

    def __init__(self) -> None:
        self.by_name: dict[str, Book] = {}
        self.placed: dict[str, Placed] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    def available(self) -> Iterator[Book]:
        """Those that take something new, by name. ValueError if there is none."""
        found = [book for book in self.by_name.values() if not book.draining]
        if not found:
            raise ValueError("no replica takes anything new")
        return iter(found)

    def join(self, book: Book) -> None:
        """ValueError if a replica of that name is here."""
        if book.replica in self.by_name:
            raise ValueError(f"replica {book.replica!r} is already here")
        self.by_name[book.replica] = book
        self.by_name = dict(sorted(self.by_name.items()))

    def leave(self, replica: str) -> list[str]:
        """The replica is gone; returns the ids of what was placed there."""
        book = self.by_name.pop(replica, None)
        lost = [i for i, placed in self.placed.items() if placed.book is book]
        for request_id in lost:
            del self.placed[request_id]
        return lost

    def place(self, request_id: str, placed: Placed) -> None:
        """Count a request. ValueError if it is placed already."""
        if request_id in self.placed:
            raise ValueError(f"request {request_id!r} is placed already")
        self.placed[request_id] = placed
        book = placed.book
        book.outstanding += 1
        book.outstanding_tokens += placed.prompt_tokens
        book.unsent[request_id] = placed
        book.placed += 1

    def sent(self, request_id: str) -> Placed | None:
        placed = self.placed.get(request_id)
        if placed is None or placed.sent:
            return None
        placed.sent = True
        del placed.book.unsent[request_id]
        return placed

    def release(self, request_id: str) -> Placed | None:
        """Uncount a request, whatever became of it; None if it is not placed."""
        placed = self.placed.pop(request_id, None)
        if placed is not None:
            book = placed.book
            book.outstanding -= 1
            book.outstanding_tokens -= placed.prompt_tokens
            if placed.sent:
                book.served += 1
            else:
                del book.unsent[request_id]
        return placed

    def homes(self) -> dict[str, str]:
        """See ``base.Homing``."""
        return {name: placed.book.replica for name, placed in self.placed.items()}

    def check_integrity(self) -> None:
        for name, book in self.by_name.items():
            mine = [placed for placed in self.placed.values() if placed.book is book]
            assert book.replica == name
            assert book.outstanding == len(mine)
            assert book.outstanding_tokens == sum(p.prompt_tokens for p in mine)
            assert book.unsent == {
                i: p for i, p in self.placed.items() if p.book is book and not p.sent
            }
        known = set(map(id, self.by_name.values()))
        assert all(id(placed.book) in known for placed in self.placed.values())
