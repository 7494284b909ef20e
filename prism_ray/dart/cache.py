"""One engine's prefix cache: the reference tree, a retention strategy, its demand and protection.

Requests, batches and the pool of running tokens live in the step model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prism_ray.dart.anchors import AnchorMark, CacheObserver, PathKey
from prism_ray.dart.control import RetentionControl, RetentionStats
from prism_ray.dart.demand import DemandState
from prism_ray.dart.node import Anchor, Node, NodeKind
from prism_ray.dart.protection import ProtectionSet
from prism_ray.dart.retention import make_strategy
from prism_ray.dart.tree import Evicted, Inserted, Matched, RadixTree
from prism_ray.model import Atom, DemandTable


class PrefixCache:
    """What ``match``, ``insert``, ``lock``, ``unlock`` and ``evict`` of an engine's cache do.

    ``retention`` names a strategy; ``pool_tokens`` sizes the protection cap (A8: ``protect_anchors``
    anchors and at most ``protect_share`` of the pool). ``observer`` hears what becomes resident and
    what goes.
    """

    def __init__(
        self,
        retention: str = "dart",
        *,
        pool_tokens: int,
        page_size: int = 1,
        protect_anchors: int = 20,
        protect_share: float = 0.5,
        anchor_rank: str = "paths",
        demand: DemandState | None = None,
        observer: CacheObserver | None = None,
    ) -> None:
        self.demand = DemandState() if demand is None else demand
        self.tree = RadixTree(make_strategy(retention, self.demand), page_size=page_size)
        self.tree.index.observer = observer
        self.control: RetentionControl[Node] = RetentionControl(
            self.tree,
            self.demand,
            pool_tokens=pool_tokens,
            protect_anchors=protect_anchors,
            protect_share=protect_share,
            anchor_rank=anchor_rank,
        )
        self.evicted_tokens_by_kind = dict.fromkeys(NodeKind, 0)

    @property
    def evicted_tokens(self) -> int:
        """Tokens evicted since the cache was made."""
        return sum(self.evicted_tokens_by_kind.values())

    def retention_stats(self) -> RetentionStats:
        """Counts since the cache was made. Costs a walk over the protected anchors."""
        private, generated, reusable, system = (self.evicted_tokens_by_kind[k] for k in NodeKind)
        protected = self.protection.protected_tokens()
        return RetentionStats(private, generated, reusable, system, protected)

    @property
    def protection(self) -> ProtectionSet[Node]:
        return self.control.protection

    def hint(self, table: DemandTable, epoch: str = "") -> bool:
        """See RetentionControl.hint."""
        return self.control.hint(table, epoch)

    def observe_request(self, path_keys: Sequence[PathKey] = ()) -> None:
        """See RetentionControl.observe_request."""
        self.control.observe_request(path_keys)

    def waits(self, request_id: str, path_keys: Iterable[PathKey | None]) -> None:
        """See RetentionControl.waits."""
        self.control.waits(request_id, path_keys)

    def waits_no_more(self, request_id: str) -> None:
        """See RetentionControl.waits_no_more."""
        self.control.waits_no_more(request_id)

    def match(self, path: tuple[Atom, ...], limit: int | None = None) -> Matched:
        """See RadixTree.match."""
        return self.tree.match(path, limit)

    def peek(self, path: tuple[Atom, ...], limit: int | None = None) -> int:
        """See RadixTree.peek."""
        return self.tree.peek(path, limit)

    def insert(
        self,
        path: tuple[Atom, ...],
        tokens: int | None = None,
        anchors: Sequence[Anchor] = (),
        *,
        counted_tokens: int = 0,
    ) -> Inserted:
        """See RadixTree.insert. The observer hears of it with marks on whole pages."""
        inserted = self.tree.insert(path, tokens, anchors, counted_tokens=counted_tokens)
        page = self.tree.page_size
        marks = (AnchorMark(a.offset - a.offset % page, *a.owner) for a in anchors)
        self.tree.index.inserted(marks, inserted.tokens)
        return inserted

    def walk(self) -> Iterator[tuple[PathKey, int, int]]:
        """(path key, start, end) of every place of which tokens are resident."""
        return self.tree.index.places()

    def lock(self, node: Node) -> None:
        """See RadixTree.lock."""
        self.tree.lock(node)

    def unlock(self, node: Node) -> None:
        """See RadixTree.unlock."""
        self.tree.unlock(node)

    def evict(self, tokens: int) -> Evicted:
        """Free at least ``tokens`` tokens if that many are unlocked; whole leaves, smallest key first."""
        self.refresh_protection()
        evicted = self.tree.evict(tokens)
        for node in evicted.nodes:
            self.evicted_tokens_by_kind[node.kind] += node.tokens
        return evicted

    def eviction_order(self) -> tuple[Node, ...]:
        """All unlocked nodes in the order in which ``evict`` would free them now."""
        self.refresh_protection()
        return self.tree.eviction_order()

    def refresh_protection(self) -> None:
        """See RetentionControl.refresh."""
        self.control.refresh()

    def flush(self) -> int:
        """Drop all that nobody has locked; the number of tokens dropped."""
        dropped = self.evict(self.tree.evictable_tokens).tokens
        if self.tree.index.observer is not None and not self.tree.total_tokens:
            self.tree.index.observer.flushed()
        return dropped

    def check_integrity(self) -> None:
        """Raise AssertionError if a total, an index, a key or the protection cap is wrong."""
        self.tree.check_integrity()
        assert self.protection.protected_tokens() <= self.protection.cap_tokens
