"""The protection set F_t: which resident anchors survive until nothing else is left; no eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Generic, Protocol, TypeVar

from prism_ray.dart.anchors import PathKey
from prism_ray.dart.demand import DemandState
from prism_ray.dart.index import OwnedNode, OwnerIndex
from prism_ray.dart.node import NodeKind, NodeView


class AnchoredNode(OwnedNode, NodeView, Protocol):
    """What protection needs of a node. ``ancestors``: itself and all above it, without the root."""

    protected: bool
    anchored: bool

    @property
    def tokens(self) -> int: ...
    def ancestors(self) -> Iterator[AnchoredNode]: ...


A = TypeVar("A", bound=AnchoredNode)


class AnchoredTree(Protocol[A]):
    """A tree whose nodes can be protected."""

    index: OwnerIndex[A]

    def evictable(self) -> Iterable[A]:
        """The leaves that could go now."""

    def rekey(self, nodes: Iterable[A]) -> None:
        """The keys of these nodes have changed."""


class ProtectionSet(Generic[A]):
    """Marks nodes as protected: the top ``anchors`` (f) wanted anchors, and system prefixes.

    Rank of anchors (choice A10): P̂, then waiting requests whose path runs through the anchor (those
    that ``RetentionControl.waits`` was told of), then shallow first, then older. An anchor costs the
    reusable tokens on its path that no better ranked one has paid for, because a protected leaf keeps
    its ancestors by itself (A11). System prefixes are outside f (A9), but not outside the cap, most
    recently used first: otherwise clients that write a fresh system prompt each time would turn
    everything else out of the cache.
    """

    def __init__(
        self,
        tree: AnchoredTree[A],
        demand: DemandState,
        *,
        anchors: int,
        cap_tokens: int,
        by_paths: bool = True,
    ) -> None:
        """Without ``by_paths`` anchors rank by P̂ alone, then older."""
        if anchors < 0 or cap_tokens < 0:
            raise ValueError("the protection budget cannot be negative")
        self._tree = tree
        self._demand = demand
        self._anchors = anchors
        self._cap_tokens = cap_tokens
        self._by_paths = by_paths
        self._keys: tuple[bytes, ...] = ()

    @property
    def cap_tokens(self) -> int:
        return self._cap_tokens

    def protected_tokens(self) -> int:
        """Tokens that are kept because of protection, ancestors included once."""
        marked = [*self._tree.index.system_nodes()]
        for key in self._keys:
            marked += self._tree.index.nodes_of(key)
        kept = {e.serial: e.tokens for n in marked if n.protected for e in n.ancestors()}
        return sum(kept.values())

    def refresh(self, through: Callable[[], Mapping[PathKey, int]] = dict) -> None:
        """Take F_t anew from what is resident and wanted now.

        ``through`` counts waiting requests by the places that their paths run through; it is asked
        only if P̂ alone leaves a tie.
        """
        self._clear()
        paid: set[int] = set()
        left = self._cap_tokens - self._protect_system(paid)
        chosen: list[A] = []
        for node in self._ranked(through):
            if len(chosen) >= self._anchors:
                break
            cost = self._pay(node, paid, left)
            if cost is not None:
                left -= cost
                chosen.append(node)
                node.protected = True
        names = (name for n in chosen for name in (n.segment, n.path_key) if name is not None)
        self._keys = tuple(dict.fromkeys(names))
        self._tree.rekey(chosen)

    def _clear(self) -> None:
        """By key, not by node: a node that was split since has given its mark to both parts."""
        for key in self._keys:
            self._unmark(self._tree.index.nodes_of(key))
        self._unmark(self._tree.index.system_nodes())
        self._keys = ()

    def _unmark(self, nodes: Iterable[A]) -> None:
        marked = [node for node in nodes if node.protected]
        for node in marked:
            node.protected = False
        self._tree.rekey(marked)

    def _protect_system(self, paid: set[int]) -> int:
        used = 0
        kept: list[A] = []
        recent = sorted(self._tree.index.system_nodes(), key=lambda n: (-n.last_access, n.serial))
        for node in recent:
            cost = self._pay(node, paid, self._cap_tokens - used)
            if cost is None:
                continue
            used += cost
            node.protected = True
            kept.append(node)
        self._tree.rekey(kept)
        return used

    def _ranked(self, through: Callable[[], Mapping[PathKey, int]]) -> Iterator[A]:
        demand = self._demand
        wanted = sorted(demand.segments(), key=demand.stored_priority, reverse=True)
        counts: Mapping[PathKey, int] | None = None
        for priority, group in groupby(wanted, key=demand.stored_priority):
            found = {
                node.serial: node
                for key in group
                for node in self._tree.index.nodes_of(key)
                if node.anchored
                and node.kind == NodeKind.REUSABLE
                # A node whose place has a row of its own is not ranked by its segment's.
                and demand.wants(node) == priority
            }
            if not self._by_paths:
                yield from sorted(found.values(), key=lambda node: node.serial)
                continue
            if counts is None and len(found) > 1:
                counts = through()
            yield from sorted(found.values(), key=self._rank(counts or {}))

    @staticmethod
    def _rank(counts: Mapping[PathKey, int]) -> Callable[[A], tuple[int, int, int]]:
        return lambda node: (-counts.get(node.path_key or b"", 0), node.end, node.serial)

    @staticmethod
    def _pay(node: A, paid: set[int], limit: int) -> int | None:
        """Cost of ``node`` and its way in tokens, now paid; None if it is more than ``limit``."""
        unpaid = [each for each in node.ancestors() if each.serial not in paid]
        cost = sum(each.tokens for each in unpaid)
        if cost > limit:
            return None
        paid.update(each.serial for each in unpaid)
        return cost
