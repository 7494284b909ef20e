"""The terms that E2 compares: load, wait, prefill, eviction, cached tokens. Compares nothing itself."""

from __future__ import annotations

from collections.abc import Iterable

from prism_ray.placement.e2_books import E2Book, Observer
from prism_ray.placement.forest import Match


class Terms:
    """Seconds at one replica: its load L, its wait, and P and M of a prompt (Preble, section 3.2)."""

    def __init__(self, costs: Observer, window_s: float, *, residual: bool = False) -> None:
        """``residual``: a wait ends with the prefill under way, of which part is done at ``now_s``.

        Uses up to ``forgotten_s`` are no part of any load: there were too many for the whole window.
        """
        self.costs = costs
        self.window_s = window_s
        self.now_s = 0.0
        self.forgotten_s = float("-inf")
        self._residual = residual

    def load_s(self, book: E2Book, now_s: float) -> float:
        """L, as it would be over a whole window."""
        return book.scaled_load_s(self.window_s, now_s, self.forgotten_s)

    def loads_s(self, books: Iterable[E2Book], now_s: float) -> list[float]:
        """``load_s`` of each."""
        window_s, forgotten_s = self.window_s, self.forgotten_s
        return [book.scaled_load_s(window_s, now_s, forgotten_s) for book in books]

    def wait_s(self, book: E2Book) -> float:
        """What a request waits there for others: their prefills, and their decoding beside its own."""
        neighbour_s = self.costs.decode.per_neighbour_s
        backlog_s = book.backlog_left_s(self.now_s) if self._residual else book.backlog_s
        return backlog_s + book.outstanding * neighbour_s * book.speed.factor

    def waits_s(self, books: Iterable[E2Book]) -> list[float]:
        """``wait_s`` of each."""
        neighbour_s = self.costs.decode.per_neighbour_s
        if self._residual:
            now_s = self.now_s
            return [
                (b.backlog_left_s(now_s) if b.backlog else 0.0)
                + b.outstanding * neighbour_s * b.speed.factor
                for b in books
            ]
        return [b.backlog_s + b.outstanding * neighbour_s * b.speed.factor for b in books]

    def prefill_s(self, book: E2Book, new_tokens: int, prompt_tokens: int) -> float:
        """P: computing so many tokens of a prompt there."""
        return self.costs.fit.time.seconds(new_tokens, prompt_tokens) * book.speed.factor

    def evict_s(self, book: E2Book, new_tokens: int) -> float:
        """M: what evicting for so many tokens would make others compute again, by their shares."""
        shelf = book.shelf
        missing = shelf.tokens + new_tokens - shelf.room_tokens
        if missing <= 0 or not book.loads:
            return 0.0
        total = 0.0
        for node in shelf.nodes:
            users = node.shared.get(book.replica, 0)
            if users:
                total += self.prefill_s(book, node.tokens, node.end_tokens) * users
            missing -= node.tokens
            if missing <= 0:
                break
        return total / book.loads


def cached_tokens(book: E2Book, found: Match) -> int:
    """How much of the matched front this replica holds."""
    if not found.tokens:
        return 0
    replica = book.replica
    part = found.part
    if part is not None and replica in part.holders:
        return found.tokens
    nodes = found.nodes
    if not nodes or replica not in nodes[0].holders:
        return 0
    for node in reversed(nodes):
        if replica in node.holders:
            return node.end_tokens
    return 0
