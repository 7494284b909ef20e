"""DART: demand-aware retention for a radix KV-cache, on a reference tree; pure, no engine in here.

A tiny example, keys by paper eq. (13)::

    cache = PrefixCache("dart", pool_tokens=1000)
    cache.insert((Atom(b"doc", 4), Atom(b"q", 2)),
                 anchors=(Anchor(4, Owner(NodeKind.REUSABLE, b"doc")), Anchor(6, PRIVATE)))
    cache.hint(DemandTable(version=1, rows=(Demand(b"doc", 1e6),)))
    [node.segment for node in cache.eviction_order()]   # [None, b"doc"]
"""

from prism_ray.dart.anchors import (
    AnchorMark,
    CacheObserver,
    path_keys,
    skeleton_anchors,
    skeleton_marks,
)
from prism_ray.dart.cache import PrefixCache
from prism_ray.dart.demand import DemandState, dump_hints, parse_hints
from prism_ray.dart.future import Future
from prism_ray.dart.node import (
    GENERATED,
    PRIVATE,
    Anchor,
    Node,
    NodeFacts,
    NodeKind,
    NodeView,
    Owner,
    Piece,
    path_tokens,
)
from prism_ray.dart.protection import ProtectionSet
from prism_ray.dart.retention import (
    REPLAY_RETENTION,
    RETENTION,
    RetentionFactory,
    RetentionStrategy,
    uses_anchors,
)
from prism_ray.dart.tree import Evicted, Inserted, Matched, RadixTree

__all__ = [
    "GENERATED",
    "PRIVATE",
    "REPLAY_RETENTION",
    "RETENTION",
    "Anchor",
    "AnchorMark",
    "CacheObserver",
    "DemandState",
    "Evicted",
    "Future",
    "Inserted",
    "Matched",
    "Node",
    "NodeFacts",
    "NodeKind",
    "NodeView",
    "Owner",
    "Piece",
    "PrefixCache",
    "ProtectionSet",
    "RadixTree",
    "RetentionFactory",
    "RetentionStrategy",
    "dump_hints",
    "parse_hints",
    "path_keys",
    "path_tokens",
    "skeleton_anchors",
    "skeleton_marks",
    "uses_anchors",
]
