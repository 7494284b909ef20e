"""Retention strategies: which leaf goes first, one key function each; the heap lives elsewhere.

A strategy sees nodes only as NodeViews, so that the same object serves the reference tree and the
tree of a real engine. Keys are tuples of numbers, the smallest is evicted first; the tree breaks
remaining ties by creation. Only leaves that nobody uses are ever compared (choice A11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from prism_ray.dart.demand import DemandState
from prism_ray.dart.node import NodeKind, NodeView
from prism_ray.registry import Registry

Key = tuple[float, ...]


class RetentionStrategy(Protocol):
    """An order of evictable leaves.

    ``uses_anchors`` asks the tree to split at segment boundaries; strategies that know no segments
    keep the engine's own node sizes (choice A13: the ``lru`` arm must be the engine's own).
    """

    uses_anchors: ClassVar[bool]

    def key(self, node: NodeView) -> Key: ...


RetentionFactory = Callable[[DemandState], RetentionStrategy]
RETENTION: Registry[RetentionFactory] = Registry("retention strategy")
REPLAY_RETENTION: Registry[RetentionFactory] = Registry("retention strategy of replays")
"""Strategies that know the future: they bound the others and cannot be served with."""


def make_strategy(name: str, demand: DemandState) -> RetentionStrategy:
    """A strategy by name, from either registry. Raises UnknownName for others."""
    return (REPLAY_RETENTION if name in REPLAY_RETENTION else RETENTION)[name](demand)


def uses_anchors(name: str) -> bool:
    """Whether a tree under that strategy knows places, and so can say which of them it holds."""
    registry = REPLAY_RETENTION if name in REPLAY_RETENTION else RETENTION
    return bool(getattr(registry[name], "uses_anchors", True))


@RETENTION.register("lru")
class Lru:
    """Least recently used first."""

    uses_anchors: ClassVar[bool] = False

    def __init__(self, demand: DemandState | None = None) -> None:
        del demand

    def key(self, node: NodeView) -> Key:
        return (node.last_access,)


@RETENTION.register("lfu")
class Lfu:
    """Fewest hits first, then least recently used."""

    uses_anchors: ClassVar[bool] = False

    def __init__(self, demand: DemandState | None = None) -> None:
        del demand

    def key(self, node: NodeView) -> Key:
        return (node.hits, node.last_access)


@RETENTION.register("slru")
class Slru:
    """Segmented LRU: what was hit fewer than ``protect_after_hits`` times goes first."""

    uses_anchors: ClassVar[bool] = False

    def __init__(self, demand: DemandState | None = None, protect_after_hits: int = 2) -> None:
        del demand
        self._protect_after_hits = protect_after_hits

    def key(self, node: NodeView) -> Key:
        return (int(node.hits >= self._protect_after_hits), node.last_access)


@RETENTION.register("dart")
class Dart:
    """Paper, eq. (13): private and generated, then unprotected by P̂, then protected by P̂.

    The system prefix is class 2 like a protected anchor, outside the budget f (choice A9). Without
    demand this is recency with suffixes first (choice A13).
    """

    uses_anchors: ClassVar[bool] = True

    def __init__(self, demand: DemandState) -> None:
        self._demand = demand

    def key(self, node: NodeView) -> Key:
        if node.kind <= NodeKind.GENERATED:
            return (0, 0.0, node.last_access)
        return (1 + node.protected, self._demand.wants(node), node.last_access)


@RETENTION.register("lru+active")
class LruActive:
    """Recency behind the active counter: the number of dispatched requests that use the segment.

    The counter is read from P̂ = w_a·A + w_n·N + w_g·G (eq. 9) as ⌊P̂ / ``active_weight``⌋; a table
    that carries plain counts is read with a weight of 1.
    """

    uses_anchors: ClassVar[bool] = True

    def __init__(self, demand: DemandState, active_weight: float = 1e6) -> None:
        self._demand = demand
        self._active_weight = active_weight

    def key(self, node: NodeView) -> Key:
        active = self._demand.wants(node) // self._active_weight
        return (active, node.last_access)


@RETENTION.register("next-use")
class NextUse:
    """Private first, then what no planned request uses by hits, then the furthest planned use."""

    uses_anchors: ClassVar[bool] = True

    def __init__(self, demand: DemandState) -> None:
        self._demand = demand

    def key(self, node: NodeView) -> Key:
        if node.kind <= NodeKind.GENERATED:
            return (0, 0.0, node.last_access)
        row = self._demand.row(node)
        if row is None or row.next_use < 0:
            return (1, node.hits, node.last_access)
        return (2, -row.next_use, node.last_access)


CONTINUED = b"continued"
"""Key of the row by which a table says that private suffixes are continued by later prompts."""


@RETENTION.register("planned")
class Planned:
    """What planned requests use soonest stays; of the rest what the table says is worth most, then LRU.

    A row with a next use is a plan's; one without says what a place is worth to requests to come. A
    private suffix goes before all that, unless the table has a row for ``CONTINUED``: then the next
    turn of a conversation may go on from it, and it goes by recency.
    """

    uses_anchors: ClassVar[bool] = True

    def __init__(self, demand: DemandState) -> None:
        self._demand = demand

    def key(self, node: NodeView) -> Key:
        if node.kind <= NodeKind.GENERATED and not self._demand.priority(CONTINUED):
            return (-1, 0.0, node.last_access)
        row = self._demand.row(node)
        if row is None:
            return (0, 0.0, node.last_access)
        if row.next_use < 0:
            return (0, row.priority, node.last_access)
        return (1, -row.next_use, node.last_access)


@REPLAY_RETENTION.register("belady")
class Belady:
    """The furthest next use first, with the future known: the bound of any order of eviction (B2).

    Only for replays: the demand state carries the ``Future``, which says when a node's place is used
    next. What is never used again, or has no place of its own, goes first. Raises ValueError without
    a future.
    """

    uses_anchors: ClassVar[bool] = True

    def __init__(self, demand: DemandState) -> None:
        if demand.future is None:
            raise ValueError(
                "retention belady needs the future: DemandState(future=Future(...)), for replays only"
            )
        self._future = demand.future

    def key(self, node: NodeView) -> Key:
        next_use = self._future.next_use(node.path_key)
        return (0, 0, node.last_access) if next_use < 0 else (1, -next_use, node.last_access)
