"""What placements share that give a request a home at its arrival and leave it there. Not E2."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

from prism_ray.model import ReplicaCapacity, Ticket
from prism_ray.placement.base import Choice, Path
from prism_ray.placement.books import Book, Books, Placed
from prism_ray.scheduling import CacheView


class SimpleHoming(ABC):
    """A ``base.Homing`` whose rule is ``choose``; load is counted when a request is placed."""

    name = ""

    def __init__(self) -> None:
        self.books = Books()
        self.kinds: Counter[str] = Counter()

    @abstractmethod
    def choose(self, ticket: Ticket, path: Path, books: list[Book]) -> Choice:
        """The home; ``books`` are the replicas that take something new, by name, never empty."""

    def joined(self, book: Book) -> None:  # noqa: B027 (most rules remember no prefixes)
        """A replica can be chosen."""

    def gone(self, replica: str) -> None:  # noqa: B027
        """A replica that was here left."""

    def join(
        self, replica: str, capacity: ReplicaCapacity, cache: CacheView | None, now_s: float
    ) -> None:
        book = Book(replica, capacity, cache, now_s)
        self.books.join(book)
        self.joined(book)

    def leave(self, replica: str) -> None:
        if replica in self.books.by_name:
            self.books.leave(replica)
            self.gone(replica)

    def drain(self, replica: str, draining: bool) -> None:
        self.books.by_name[replica].draining = draining

    def place(self, ticket: Ticket, path: Path, now_s: float) -> Choice:
        choice = self.choose(ticket, path, list(self.books.available()))
        book = self.books.by_name[choice.replica]
        placed = Placed(book, path, ticket.skeleton.prompt_tokens, now_s)
        self.books.place(ticket.request_id, placed)
        self.kinds[choice.kind] += 1
        return choice

    def move(self, ticket: Ticket, path: Path, ready: Sequence[str], now_s: float) -> Choice | None:
        """These rules know no second thoughts."""
        return None

    def sent(self, request_id: str, path: Path, cached_tokens: int, now_s: float) -> None:
        self.books.sent(request_id)

    def prefilled(self, request_id: str, now_s: float) -> None:
        placed = self.books.placed.get(request_id)
        if placed is not None:
            placed.prefilled = True

    def released(self, request_id: str, output_tokens: int | None, now_s: float) -> None:
        self.books.release(request_id)

    def flushed(self, replica: str) -> None:  # noqa: B027
        """Whoever remembers prefixes overrides this."""

    def homes(self) -> dict[str, str]:
        return self.books.homes()

    def describe(self, top: int = 20) -> dict[str, Any]:
        """Keys: placement, replicas, decisions."""
        return {
            "placement": self.name,
            "replicas": [
                {"replica": b.replica, "outstanding": b.outstanding, "placed": b.placed}
                for b in list(self.books.by_name.values())[:top]
            ],
            "decisions": dict(sorted(self.kinds.items())),
        }

    def check_integrity(self) -> None:
        self.books.check_integrity()


def least_outstanding(books: Sequence[Book]) -> Book:
    """The fewest requests placed and not gone; ties by requests ever placed, then by name."""
    return min(books, key=lambda b: (b.outstanding, b.placed, b.replica))
