"""The placement ``e2``: Preble's exploitation and exploration (arXiv 2407.00023, section 3.2).

Follows requests from their choice to their end and keeps what the next choice needs. The rule itself,
its terms, the forest, the books, the cost model and replication are modules of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from prism_ray.model import ReplicaCapacity, Ticket
from prism_ray.placement.base import PLACEMENTS, Choice, Path
from prism_ray.placement.books import Books
from prism_ray.placement.e2_books import E2Book, E2Placed, Observer
from prism_ray.placement.e2_params import PLUS, E2Params
from prism_ray.placement.e2_report import report
from prism_ray.placement.e2_rule import Rule
from prism_ray.placement.e2_terms import Terms, cached_tokens
from prism_ray.placement.forest import Forest, Match, Node, Use
from prism_ray.placement.pace import Pace
from prism_ray.placement.replication import Replication, key_node
from prism_ray.scheduling import CacheView, ToldCacheView


class E2:
    """See ``E2Params`` for its options and ``base.Homing`` for its protocol.

    A choice is made from the forest's belief. Where the engine's own truth (the replica's
    ``CacheView``) says that a prefix is gone, the belief is corrected and the choice made anew; where
    nothing is believed of a prefix yet, replicas that tell what they hold are asked for it.
    """

    def __init__(
        self, params: Mapping[str, Any] | E2Params | None = None, name: str = "e2"
    ) -> None:
        self.name = name
        self.params = (
            params if isinstance(params, E2Params) else E2Params.from_mapping(params or {})
        )
        p = self.params
        self.forest = Forest(p.window_s, shelf_nodes_max=p.shelf_nodes_max, uses_max=p.uses_max)
        self.costs = Observer(p.prefill_tokens_per_s, p.decode_token_s)
        self.replication = Replication(p.replicate_ratio, p.window_s)
        self.kinds: Counter[str] = Counter()
        self.terms = Terms(self.costs, p.window_s, residual=p.residual)
        self.rule = Rule(p, self.terms, self.replication)
        self._pace = Pace(p.pace_loss) if p.pace else None
        self._books = Books()

    @property
    def slots(self) -> int | None:
        """Requests that a replica should have at once; None for no bound (``base.Pacing``)."""
        return None if self._pace is None else self._pace.slots

    # -- replicas -------------------------------------------------------------------------------

    def join(
        self, replica: str, capacity: ReplicaCapacity, cache: CacheView | None, now_s: float
    ) -> None:
        if not len(self._books):
            self.rule.since_s = now_s
        at_work = any(book.served >= self.params.explore_until for book in self.rule.books)
        shelf = self.forest.join(replica, capacity.pool_tokens)
        told = cache if isinstance(cache, ToldCacheView) else None
        book = E2Book(replica, capacity, cache, now_s, shelf=shelf, told=told, late=at_work)
        self._books.join(book)
        self._relist()

    def leave(self, replica: str) -> None:
        if replica in self._books.by_name:
            self._books.leave(replica)
            self.forest.leave(replica)
            self._relist()

    def drain(self, replica: str, draining: bool) -> None:
        self._books.by_name[replica].draining = draining
        self._relist()

    def flushed(self, replica: str) -> None:
        if replica in self._books.by_name:
            self.forest.clear(replica)

    def _relist(self) -> None:
        books = self._books.by_name.values()
        self.rule.choose_among([b for b in books if isinstance(b, E2Book) and not b.draining])

    # -- requests -------------------------------------------------------------------------------

    def place(self, ticket: Ticket, path: Path, now_s: float) -> Choice:
        if not self.rule.books:
            raise ValueError("no replica takes anything new")
        if ticket.request_id in self._books.placed:
            raise ValueError(f"request {ticket.request_id!r} is placed already")
        self._expire(now_s)
        self.terms.now_s = now_s
        prompt_tokens = ticket.skeleton.prompt_tokens
        found = self.forest.match(path)
        if 2 * found.tokens <= prompt_tokens and self.forest.is_new(path, found):
            found = self._ask(path, found, now_s)
        while True:
            chosen = self.rule.choose(found, prompt_tokens, now_s)
            book, cached = chosen.book, chosen.cached_tokens
            if self._is_true(book, found, path, cached, now_s):
                break
            found = self.forest.match(path)
        self.rule.commit(chosen, now_s)
        self._assign(ticket, path, book, prompt_tokens, prompt_tokens - cached, now_s)
        self.kinds[chosen.kind] += 1
        return Choice(book.replica, chosen.kind, chosen.numbers)

    def move(self, ticket: Ticket, path: Path, ready: Sequence[str], now_s: float) -> Choice | None:
        placed = self._books.placed[ticket.request_id]
        home = placed.book
        assert isinstance(home, E2Book)
        if not self.params.spill:
            return None
        self.terms.now_s = now_s
        prompt_tokens = placed.prompt_tokens
        found = self.forest.match(path)
        names = frozenset(ready)
        # What it waits for at home is the others there, not itself; nor does it find there what only
        # itself would bring.
        assert isinstance(placed, E2Placed)
        here_s = self.terms.wait_s(home) - placed.prefill_s
        same_tokens = found.tokens if path == placed.path else _same_tokens(path, placed.path)
        held = self.forest.held_without(placed.use, found, same_tokens)
        other = self.rule.sooner(home, here_s, held, found, prompt_tokens, among=names)
        if other is None:
            return None
        cached = cached_tokens(other, found)
        numbers: dict[str, float | int | str] = {
            "cached_tokens": cached,
            "missed_tokens": prompt_tokens - cached,
            "load_s": self.terms.load_s(other, now_s),
            "wait_s": self.terms.wait_s(other),
            "instead_of": home.replica,
            "instead_cached_tokens": held,
            "instead_load_s": self.terms.load_s(home, now_s),
            "instead_wait_s": here_s,
        }
        self._forget(ticket.request_id, ran=False)
        self._assign(ticket, path, other, prompt_tokens, prompt_tokens - cached, now_s)
        self.kinds["spill"] += 1
        return Choice(other.replica, "spill", numbers)

    def sent(self, request_id: str, path: Path, cached_tokens: int, now_s: float) -> None:
        placed = self._books.sent(request_id)
        if not isinstance(placed, E2Placed):
            return
        placed.sent_s = now_s
        book = placed.book
        assert isinstance(book, E2Book)
        book.compute(now_s)
        placed.new_tokens = max(1, placed.prompt_tokens - cached_tokens)
        if path != placed.path:
            # The policy wrote it in another order than it would have when it was placed.
            before = placed.use
            placed.path = path
            placed.use = self.forest.use(path, book.replica, now_s, before.cost_s, before.decode_s)
            book.count(placed.use)
            self._undo(before, believed=False)
        if self.params.replicate:
            node = key_node(placed.use.node)
            whole_s = self.costs.fit.time.seconds(node.end_tokens, node.end_tokens)
            self.replication.waited(node, now_s - placed.arrival_s, whole_s, now_s)

    def prefilled(self, request_id: str, now_s: float) -> None:
        placed = self._books.placed.get(request_id)
        if not isinstance(placed, E2Placed) or placed.prefilled:
            return
        placed.prefilled = True
        placed.prefilled_s = now_s
        book = placed.book
        assert isinstance(book, E2Book)
        book.settle(placed.prefill_s)
        if placed.sent:
            book.computed(now_s)
        book.prefills_s += placed.prefill_s
        placed.prefills_before_s = book.prefills_s
        book.decoding += 1
        if self._pace is not None:
            self._pace.prefilled(placed.prefill_s / book.speed.factor)
        self.costs.prefilled(book, placed, now_s)

    def released(self, request_id: str, output_tokens: int | None, now_s: float) -> None:
        placed = self._books.placed.get(request_id)
        if not isinstance(placed, E2Placed):
            return
        book = placed.book
        assert isinstance(book, E2Book)
        if placed.prefilled and output_tokens is not None:
            self.costs.finished(book, placed, output_tokens, now_s)
            if self._pace is not None:
                seconds = (now_s - placed.prefilled_s) / book.speed.factor
                undisturbed = book.prefills_s == placed.prefills_before_s
                self._pace.answered(output_tokens, seconds, undisturbed=undisturbed)
        if placed.sent and not placed.prefilled:
            book.computed(now_s)
        self._forget(request_id, ran=placed.prefilled)

    def _assign(
        self,
        ticket: Ticket,
        path: Path,
        book: E2Book,
        prompt_tokens: int,
        missed: int,
        now_s: float,
    ) -> None:
        prefill_s = self.terms.prefill_s(book, missed, prompt_tokens)
        decode_s = book.outputs.value * self.costs.decode.token_s * book.speed.factor
        use = self.forest.use(path, book.replica, now_s, prefill_s + decode_s, decode_s)
        placed = E2Placed(
            book,
            path,
            prompt_tokens,
            now_s,
            use=use,
            prefill_s=prefill_s,
            arrival_s=ticket.arrival_s,
            new_tokens=missed,
        )
        self._books.place(ticket.request_id, placed)
        book.count(use)
        book.owe(prefill_s)

    def _forget(self, request_id: str, *, ran: bool) -> None:
        """Uncount a request. What never ran was no load; what ran stays in the window of H."""
        placed = self._books.release(request_id)
        assert isinstance(placed, E2Placed)
        book = placed.book
        assert isinstance(book, E2Book)
        if placed.prefilled:
            book.decoding -= 1
        else:
            book.settle(placed.prefill_s)
        if not ran:
            self._undo(placed.use, believed=placed.sent)

    def _undo(self, use: Use, *, believed: bool) -> None:
        """The use is no load, unless it expired and is none already; nor is its prefix there then, if it
        is not ``believed``.
        """
        book = self._books.by_name[use.shelf.replica]
        assert isinstance(book, E2Book)
        if use.live:
            if believed:
                self.forest.undo(use)
            else:
                unsent = book.unsent.values()
                self.forest.withdraw(use, [p.use for p in unsent if isinstance(p, E2Placed)])
            book.discount(use)

    def _expire(self, now_s: float) -> None:
        for use in self.forest.expire(now_s):
            book = self._books.by_name.get(use.shelf.replica)
            if isinstance(book, E2Book) and book.shelf is use.shelf:
                book.discount(use)
        self.terms.forgotten_s = self.forest.forgotten_s

    def _ask(self, path: Path, found: Match, now_s: float) -> Match:
        """Before a prefix is explored of which nothing is known: who tells that it is there?

        So it is after a restart, when the forest is empty and the caches are not. Once asked for, the
        prefix is known.
        """
        for book in self.rule.books:
            if book.told is not None and book.told.exact:
                there = book.told.match(path).cached_tokens
                if there > cached_tokens(book, found):
                    self.forest.hold(path, there, book.replica, now_s)
        return self.forest.match(path)

    def _is_true(self, book: E2Book, found: Match, path: Path, cached: int, now_s: float) -> bool:
        """Whether the replica's own view agrees that it has this; else the forest is corrected.

        What placed requests that wait for it will bring cannot be there yet.
        """
        if not cached or book.cache is None:
            return True
        there = book.cache.match(path).computing_tokens
        if there >= cached:
            return True
        replica = book.replica
        for node in [*found.nodes, *([found.part] if found.part is not None else [])]:
            if node.end_tokens <= there or replica not in node.holders:
                continue
            if replica in node.shared and self._comes(book, node):
                continue
            starts = node.end_tokens - node.tokens
            self.forest.drop(replica, node)
            if there > starts:
                self.forest.hold(path, there, replica, now_s)
            return False
        return True

    def _comes(self, book: E2Book, node: Node) -> bool:
        """Whether a request that waits for a replica is going to bring a prefix there."""
        brings = self.forest.brings
        waiting = reversed(book.unsent.values())
        return any(isinstance(p, E2Placed) and brings(p.use, node) for p in waiting)

    def homes(self) -> dict[str, str]:
        return self._books.homes()

    def describe(self, top: int = 20) -> dict[str, Any]:
        """Keys: placement, replicas, forest, cost, decisions, prefixes (those with most load)."""
        return report(self, top)

    def check_integrity(self) -> None:
        self.forest.check_integrity()
        self._books.check_integrity()
        assert set(self.forest.shelves) == set(self._books.by_name)
        live = [use for use in self.forest._uses if use.live]
        for name, book in self._books.by_name.items():
            assert isinstance(book, E2Book)
            mine = [use for use in live if use.shelf is book.shelf]
            assert book.shelf.replica == name
            assert book.loads == len(mine)
            assert abs(book.load_s - sum(use.cost_s for use in mine)) < 1e-6
            assert abs(book.decode_s - sum(use.decode_s for use in mine)) < 1e-6
            placed = [p for p in self._books.placed.values() if p.book is book]
            assert book.backlog == sum(not p.prefilled for p in placed)
            assert book.computing == sum(p.sent and not p.prefilled for p in placed)
            assert book.decoding == sum(p.prefilled for p in placed)
            owed = [p.prefill_s for p in placed if isinstance(p, E2Placed) and not p.prefilled]
            assert abs(book.backlog_s - sum(owed)) < 1e-6


def _same_tokens(one: Path, other: Path) -> int:
    """Tokens of the front that two paths have in common."""
    tokens = 0
    for atom, also in zip(one, other, strict=False):
        if atom.id != also.id:
            break
        tokens += atom.tokens
    return tokens


@PLACEMENTS.register("e2")
def _e2(params: Mapping[str, Any]) -> E2:
    return E2(params)


@PLACEMENTS.register("e2+")
def _e2_plus(params: Mapping[str, Any]) -> E2:
    """E2 with ``e2_params.PLUS`` for defaults."""
    return E2({**PLUS, **params}, "e2+")
