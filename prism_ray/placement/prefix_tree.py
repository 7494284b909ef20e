"""A placement that remembers which replica was sent which prefix, as the routers do. Chooses nothing.

Unlike E2's forest it has no window: what was sent counts as cached until the replica's part of the
tree outgrows its bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism_ray.model import Ticket
from prism_ray.placement.base import Choice, Path
from prism_ray.placement.books import Book
from prism_ray.placement.forest import Forest
from prism_ray.placement.simple import SimpleHoming


class PrefixTreeHoming(SimpleHoming):
    """Keeps a tree of what was placed; at most ``tree_tokens`` (0: its pool) a replica, LRU."""

    def __init__(self, tree_tokens: int = 0) -> None:
        super().__init__()
        self._tree_tokens = tree_tokens
        self.tree = Forest(window_s=0.0)

    def joined(self, book: Book) -> None:
        self.tree.join(book.replica, self._tree_tokens or book.capacity.pool_tokens)

    def gone(self, replica: str) -> None:
        self.tree.leave(replica)

    def flushed(self, replica: str) -> None:
        if replica in self.books.by_name:
            self.tree.clear(replica)

    def place(self, ticket: Ticket, path: Path, now_s: float) -> Choice:
        choice = super().place(ticket, path, now_s)
        self.tree.use(path, choice.replica, now_s)
        self.tree.expire(now_s)
        return choice

    def matched(self, path: Path, books: Sequence[Book]) -> tuple[int, list[Book]]:
        """The longest front that one of the replicas was sent, and who was sent all of it."""
        able = {book.replica: book for book in books}
        found = self.tree.match(path)
        ends = [(node, node.end_tokens) for node in found.nodes]
        if found.part is not None:
            ends.append((found.part, found.tokens))
        for node, tokens in reversed(ends):
            holders = [able[name] for name in sorted(node.holders) if name in able]
            if holders:
                return tokens, holders
        return 0, []

    def smallest(self, books: Sequence[Book]) -> list[Book]:
        """Those with the fewest tokens in the tree."""
        sizes = [self.tree.shelves[book.replica].tokens for book in books]
        least = min(sizes)
        return [book for book, size in zip(books, sizes, strict=True) if size == least]

    def check_integrity(self) -> None:
        super().check_integrity()
        self.tree.check_integrity()
        assert set(self.tree.shelves) == set(self.books.by_name)
