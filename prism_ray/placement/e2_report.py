"""What E2 tells people of itself: replicas, costs, decisions and loaded prefixes, JSON-ready."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_ray.placement.e2 import E2


def report(e2: E2, top: int) -> dict[str, Any]:
    """Keys: placement, replicas, forest, cost, decisions, prefixes (those with most load)."""
    time = e2.costs.fit.time
    nodes = nsmallest(top, e2.forest.walk(), key=lambda n: (-n.load_s, n.atoms[0].id))
    return {
        "placement": e2.name,
        "replicas": [
            {
                "replica": b.replica,
                "load_s": b.load_s,
                "decode_s": b.decode_s,
                "backlog_s": b.backlog_s,
                "outstanding": b.outstanding,
                "held_tokens": b.shelf.tokens,
                "speed": b.speed.factor,
                "new": b.is_new(e2.params.explore_until),
            }
            for b in e2.rule.books[:top]
        ],
        "forest": {"nodes": e2.forest.nodes, "uses": len(e2.forest)},
        "cost": {
            "a_s": time.a,
            "b_s": time.b,
            "c_s": time.c,
            "d_s": time.d,
            "decode_token_s": e2.costs.decode.token_s,
            "observations": e2.costs.fit.observations,
        },
        "decisions": dict(sorted(e2.kinds.items())),
        "prefixes": [
            {
                "ends_with": node.atoms[-1].id.hex(),
                "tokens": node.end_tokens,
                "holders": sorted(node.holders)[:top],
                "uses": node.uses,
                "load_s": node.load_s,
            }
            for node in nodes
        ],
    }
