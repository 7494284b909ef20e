"""E2's rule: which replica a prompt goes to (arXiv 2407.00023, section 3.2). Counts no requests."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, inf
from typing import NamedTuple

from prism_ray.placement.e2_books import YOUNGEST, E2Book
from prism_ray.placement.e2_params import E2Params
from prism_ray.placement.e2_terms import Terms, cached_tokens
from prism_ray.placement.forest import Match, Node
from prism_ray.placement.replication import Replication, key_node

Numbers = dict[str, float | int | str]
_LAST = (inf, inf, 0, "")
"""After the key of every candidate."""


class Copy(NamedTuple):
    """A copy of a prefix that was due: its place among the holders, or 0 where all hold it already."""

    node: Node
    number: int


class Chosen(NamedTuple):
    """A replica, how much of the prompt it is believed to have, the rule, and what was compared.

    The rest is for ``Rule.commit``: the prefix that was asked for, the copy that was due, and whether
    new replicas took turns.
    """

    book: E2Book
    cached_tokens: int
    kind: str
    numbers: Numbers
    asked: Node | None = None
    copy: Copy | None = None
    turn: bool = False


class Rule:
    """``books`` are the replicas that take something new, by name; ``since_s`` is when the first came.

    What it reads (books, terms, the forest's nodes) is kept by others. A choice changes nothing until it
    is committed: then the turns of new replicas, the rate of the prefix and, through ``Replication``, the
    copies that were decided.
    """

    def __init__(self, params: E2Params, terms: Terms, replication: Replication) -> None:
        self.books: list[E2Book] = []
        self.since_s = 0.0
        self._params = params
        self._terms = terms
        self._replication = replication
        self._by_name: dict[str, E2Book] = {}
        self._explored = 0

    def choose_among(self, books: list[E2Book]) -> None:
        """From now on these replicas take something new."""
        self.books = books
        self._by_name = {book.replica: book for book in books}

    def choose(self, found: Match, prompt_tokens: int, now_s: float) -> Chosen:
        """Exploit where more of the prompt is cached than missing, else explore."""
        cached = min(found.tokens, prompt_tokens - 1)
        if prompt_tokens - cached < cached:
            exploited = self._exploit(found, prompt_tokens, now_s)
            if exploited is not None:
                return exploited
        return self._explore(found, prompt_tokens, now_s)

    def commit(self, chosen: Chosen, now_s: float) -> None:
        """The request goes where it was chosen to."""
        if chosen.asked is not None:
            self._ask(chosen.asked, now_s)
        if chosen.copy is not None:
            node, number = chosen.copy
            if number:
                self._replication.copied(node, number, now_s)
                self._replication.split(node, chosen.book.replica, number, now_s)
            else:
                self._replication.nowhere(node)
        if chosen.turn:
            self._explored += 1
            if chosen.kind == "new-replica":
                chosen.book.explored += 1

    def _exploit(self, found: Match, prompt_tokens: int, now_s: float) -> Chosen | None:
        node = _longest(found)
        asked = node if self._params.recent_s else None
        by_name = self._by_name
        holders = [by_name[name] for name in node.holders if name in by_name]
        if not holders:
            return None
        kind = "exploit"
        copy: Copy | None = None
        if self._params.replicate:
            given = self._given(found, now_s)
            if given is not None:
                kind, holders = "split", [given]
            else:
                copy = self._due(found, holders)
            if copy is not None and copy.number:
                book = self._lightest_of_others(holders, now_s)
                cached = cached_tokens(book, found)
                return Chosen(book, cached, "replicate", {"holders": len(holders)}, asked, copy)
        surplus: frozenset[str] = frozenset()
        if self._params.replicate and len(holders) > 1:
            needed = self._needed(node, holders, now_s)
            if len(needed) < len(holders):
                kept = {book.replica for book in needed}
                surplus = frozenset(b.replica for b in holders if b.replica not in kept)
            holders = needed
        book, compared = self._cheapest(holders, found, prompt_tokens, now_s)
        cached = cached_tokens(book, found)
        load = self._terms.load_s(book, now_s)
        other: E2Book | None = None
        if self._params.rebalance and load > self._params.busy_share * self._params.window_s:
            other = self._lighter(book, load, found, prompt_tokens, now_s)
            kind = "rebalance" if other is not None else kind
        if other is None and self._params.spill:
            here_s = self._terms.wait_s(book)
            other = self.sooner(book, here_s, cached, found, prompt_tokens, surplus=surplus)
            kind = "spill" if other is not None else kind
        numbers: Numbers = {"holders": len(node.holders)}
        if other is None:
            numbers |= compared
        else:
            numbers["instead_of"] = book.replica
            numbers["instead_cached_tokens"] = cached
            numbers["instead_load_s"] = load
            numbers["instead_wait_s"] = self._terms.wait_s(book)
            book = other
            cached = cached_tokens(book, found)
        numbers |= self._state(book, cached, prompt_tokens, now_s)
        return Chosen(book, cached, kind, numbers, asked, copy)

    def _explore(self, found: Match, prompt_tokens: int, now_s: float) -> Chosen:
        until = self._params.explore_until
        new = [book for book in self.books if book.is_new(until)]
        candidates = self.books
        turn = bool(new) and len(new) < len(self.books)
        if turn:
            # Each new replica gets every n-th exploring request, n = 1 / share, over all of them.
            share = min(0.5, self._params.explore_share * len(new))
            if int((self._explored + 1) * share) > int(self._explored * share):
                book = min(new, key=lambda b: (b.explored, b.replica))
                cached = cached_tokens(book, found)
                return Chosen(book, cached, "new-replica", {"served": book.served}, turn=True)
            candidates = [book for book in self.books if not book.is_new(until)]
        elif self._params.decode_balance:
            decoding = self._decode_heavy()
            if decoding is not None:
                share = decoding.decode_s / decoding.load_s
                cached = cached_tokens(decoding, found)
                return Chosen(decoding, cached, "decode", {"decode_share": share})
        book, numbers = self._cheapest(candidates, found, prompt_tokens, now_s)
        if self._params.spill:
            # The load of a whole window says little of who is busy now.
            own_s = self._terms.prefill_s(book, prompt_tokens, prompt_tokens)
            waits = self._terms.waits_s(candidates)
            least_s = min(waits)
            if self._terms.wait_s(book) > least_s + own_s:
                shortest = [b for b, w in zip(candidates, waits, strict=True) if w == least_s]
                wait_s = self._terms.wait_s(book)
                numbers = {"instead_of": book.replica, "instead_wait_s": wait_s}
                book = min(shortest, key=lambda b: (b.placed, b.replica))
        cached = cached_tokens(book, found)
        numbers |= self._state(book, cached, prompt_tokens, now_s)
        numbers["evict_s"] = self._terms.evict_s(book, prompt_tokens - cached)
        return Chosen(book, cached, "explore", numbers, turn=turn)

    def _state(self, book: E2Book, cached: int, prompt_tokens: int, now_s: float) -> Numbers:
        return {
            "cached_tokens": cached,
            "missed_tokens": prompt_tokens - cached,
            "load_s": self._terms.load_s(book, now_s),
            "wait_s": self._terms.wait_s(book),
        }

    def _cheapest(
        self, books: Sequence[E2Book], found: Match, prompt_tokens: int, now_s: float
    ) -> tuple[E2Book, Numbers]:
        """The least L + M + P; among those within ``equal_cost`` of it, where it is done first.

        Ties go to who was placed on least, never by position. With what was compared: its cost and
        when it is done there, and those of the next of them, or of the cheapest beyond.
        """
        if len(books) == 1:
            return books[0], {}
        fixed_s, token_s = self._terms.costs.fit.time.line(prompt_tokens)
        whole_s = fixed_s + token_s * prompt_tokens
        owns: list[float] = []
        costs: list[float] = []
        for book, load_s in zip(books, self._terms.loads_s(books, now_s), strict=True):
            cached = cached_tokens(book, found)
            own_s = (whole_s - token_s * cached) * book.speed.factor
            shelf = book.shelf
            missed = prompt_tokens - cached
            if shelf.tokens + missed > shelf.room_tokens:
                own_s += self._terms.evict_s(book, missed)
            owns.append(own_s)
            costs.append(load_s + own_s)
        limit = min(costs) * self._params.equal_cost
        waits = self._terms.waits_s(books)
        best = second = _LAST
        chosen = runner_up = books[0]
        for book, cost_s, own_s, wait_s in zip(books, costs, owns, waits, strict=True):
            if cost_s > limit or wait_s + own_s > second[0]:
                continue
            key = (wait_s + own_s, cost_s, book.placed, book.replica)
            if key < best:
                best, second = key, best
                chosen, runner_up = book, chosen
            elif key < second:
                second, runner_up = key, book
        if second is _LAST:
            cost_s, at = min((cost_s, at) for at, cost_s in enumerate(costs) if cost_s > limit)
            second, runner_up = (waits[at] + owns[at], cost_s, 0, ""), books[at]
        return chosen, {
            "done_s": best[0],
            "cost_s": best[1],
            "runner_up": runner_up.replica,
            "runner_up_done_s": second[0],
            "runner_up_cost_s": second[1],
        }

    def _needed(self, node: Node, holders: list[E2Book], now_s: float) -> list[E2Book]:
        """As many of a prefix's holders as its load keeps busy; those that had most of it lately.

        The others get no more of it: their copies leave the window and are evicted.
        """
        needed = max(self._kept_busy(node, now_s), self._replication.copies(node, now_s), 1)
        if needed >= len(holders):
            return holders
        shared = node.shared
        return sorted(holders, key=lambda b: (-shared.get(b.replica, 0), b.replica))[:needed]

    def _kept_busy(self, node: Node, now_s: float) -> int:
        """How many replicas the prefix's load keeps busy: within H, and at its rate of late."""
        share = node.load_s / self._elapsed(now_s)
        if node.asked is not None and node.uses:
            rate, at_s = node.asked
            rate *= exp((at_s - now_s) / self._params.recent_s)
            share = max(share, rate * node.load_s / node.uses)
        return ceil(share / self._params.busy_share)

    def _copy_ratio(self, found: Match) -> float:
        """How often what a spilled request computes again counts."""
        ratio = self._params.spill_ratio
        if self._params.copy_shared and found.nodes:
            node = found.nodes[-1]
            holders = len(node.holders)
            # A copy that the prefix does not keep busy is of no use to others.
            if self._kept_busy(node, self._terms.now_s) > holders:
                ratio *= min(1.0, (holders + 1) / max(1, node.uses))
        return ratio

    def _ask(self, node: Node, now_s: float) -> None:
        """Another request wants the prefix: its rate over about the last ``recent_s``."""
        memory_s = self._params.recent_s
        rate, at_s = node.asked or (0.0, now_s)
        node.asked = rate * exp((at_s - now_s) / memory_s) + 1.0 / memory_s, now_s

    def _given(self, found: Match, now_s: float) -> E2Book | None:
        """The replica that was given this part of the tree with a copy."""
        for node in found.nodes:
            given_to = self._replication.given_to(node, now_s)
            if given_to is None:
                continue
            book = self._by_name.get(given_to)
            if book is not None and self._carries(book, now_s):
                return book
            node.moved = None
        return None

    def _due(self, found: Match, holders: list[E2Book]) -> Copy | None:
        """The copy of the prompt's key portion that is due, if one is."""
        node = key_node(found.part or found.nodes[-1])
        if not self._replication.is_due(node):
            return None
        return Copy(node, len(holders) + 1 if len(holders) < len(self.books) else 0)

    def _lightest_of_others(self, holders: list[E2Book], now_s: float) -> E2Book:
        """The least wait among those that hold it not, of equals the least load."""
        holding = {book.replica for book in holders}
        others = [book for book in self.books if book.replica not in holding]
        waits = self._terms.waits_s(others)
        least_s = min(waits)
        return min(
            [b for b, wait_s in zip(others, waits, strict=True) if wait_s == least_s],
            key=lambda b: (self._terms.load_s(b, now_s), b.placed, b.replica),
        )

    def _carries(self, book: E2Book, now_s: float) -> bool:
        """Whether a replica is not out of proportion to the lightest."""
        least = min(self._terms.loads_s(self.books, now_s))
        return self._terms.load_s(book, now_s) <= self._params.rebalance_ratio * max(least, 1e-9)

    def _lighter(
        self, book: E2Book, load: float, found: Match, prompt_tokens: int, now_s: float
    ) -> E2Book | None:
        """The lightest replica, if ``book`` is the heaviest and out of proportion to it."""
        loads = self._terms.loads_s(self.books, now_s)
        least = min(loads)
        if load < max(loads) or load <= self._params.rebalance_ratio * least:
            return None
        lightest = self.books[loads.index(least)]
        if self._params.recent_s and self._terms.wait_s(lightest) > self._terms.wait_s(book):
            return None
        missed = prompt_tokens - cached_tokens(lightest, found)
        apart_s = book.load_s - lightest.load_s
        gain_s = apart_s - self._terms.prefill_s(lightest, missed, prompt_tokens)
        return lightest if gain_s > 0 and lightest is not book else None

    def sooner(
        self,
        home: E2Book,
        here_s: float,
        held: int,
        found: Match,
        prompt_tokens: int,
        *,
        among: frozenset[str] | None = None,
        surplus: frozenset[str] = frozenset(),
    ) -> E2Book | None:
        """A replica where the request would be done sooner than waiting ``here_s`` at home, which holds
        ``held`` tokens of it whether it stays or not; of ``among`` if given.

        Holders of a part of its prompt and replicas near the shortest wait. What it would compute
        there and not at home counts ``spill_ratio`` times more: others wait for that too. A holder
        in ``surplus`` is being given up: it counts as if it had to compute all of it.
        """
        params = self._params
        fixed_s, token_s = self._terms.costs.fit.time.line(prompt_tokens)
        own_s = (fixed_s + token_s * (prompt_tokens - held)) * home.speed.factor
        if here_s <= own_s * params.spill_after:
            return None
        ratio = self._copy_ratio(found)
        best_s, best = here_s + own_s, home
        waits = self._terms.waits_s(self.books)
        limit = min(waits) * params.near_minimum
        for book, wait_s in zip(self.books, waits, strict=True):
            if among is not None and book.replica not in among:
                continue
            factor = book.speed.factor
            if wait_s >= best_s:
                continue
            cached = cached_tokens(book, found)
            if not cached and wait_s > limit:
                continue
            there_s = (fixed_s + token_s * (prompt_tokens - cached)) * factor
            extra_s = max(0.0, there_s - own_s) * ratio
            if book.replica in surplus:
                extra_s += token_s * cached * factor
            takes_s = wait_s + there_s + extra_s
            if takes_s < best_s or (takes_s == best_s and book.placed < best.placed):
                best_s, best = takes_s, book
        return best if best is not home else None

    def _decode_heavy(self) -> E2Book | None:
        """The replica whose share of decoding is above ImbalR times the mean, if one decodes.

        Of two replicas no share is above twice their mean: the mean is the other's then.
        """
        shares = [b.decode_s / b.load_s if b.load_s > 0 else 0.0 for b in self.books]
        highest = max(shares)
        mean = min(shares) if len(shares) == 2 else sum(shares) / len(shares)
        if not highest or highest <= self._params.decode_ratio * mean:
            return None
        return self.books[shares.index(highest)]

    def _elapsed(self, now_s: float) -> float:
        """Seconds that the window holds by now."""
        window_s = self._params.window_s
        since_s = max(self.since_s, self._terms.forgotten_s)
        return min(window_s, max(now_s - since_s, window_s / YOUNGEST))


def _longest(found: Match) -> Node:
    """The longest node of the matched front, the deepest of equals; ``found`` is not empty."""
    best: Node | None = None
    tokens = -1
    for node in found.nodes:
        if node.tokens >= tokens:
            best, tokens = node, node.tokens
    part = found.part
    if part is not None:
        matched = found.tokens - (found.nodes[-1].end_tokens if found.nodes else 0)
        if matched >= tokens:
            best = part
    assert best is not None
    return best
