"""When a prefix deserves another replica (Preble, section 3.2): its queueing time doubled.

Watches queueing times of key portions and counts copies; which replica gets one is E2's choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from prism_ray.placement.forest import Node

FAST_MEMORY = 8
"""Requests over which the present queueing time of a prefix is averaged."""
LEAST_REQUESTS = 8
"""Before so many requests a prefix has no usual queueing time."""

TRIFLE = 0.1
"""Queueing below this part of what computing the prefix takes is no reason for a copy."""
WORTH = 4.0
"""A copy is worth it when it can save so many times what it costs."""


@dataclass(slots=True)
class Watch:
    """A prefix's queueing times: the usual one (over H) and the present one; and its copies."""

    usual_s: float
    present_s: float
    seen_s: float
    requests: int = 1
    due: bool = False
    copies: int = 1
    until_s: float = 0.0


class Replication:
    """Watches live in ``Node.state`` of key portions, so they die with their prefix."""

    def __init__(self, ratio: float, window_s: float) -> None:
        self._ratio = ratio
        self._window_s = window_s
        self.replications = 0

    def waited(self, node: Node, wait_s: float, whole_s: float, now_s: float) -> None:
        """A request with this key portion waited so long; computing the portion takes ``whole_s``.

        A copy is due when the present queueing time is ``ratio`` times the usual one and no trifle,
        and what the requests of a window wait together is several times what the copy costs.
        """
        watch = node.state
        if not isinstance(watch, Watch):
            node.state = Watch(wait_s, wait_s, now_s)
            return
        watch.requests += 1
        requests = watch.requests
        watch.present_s += (wait_s - watch.present_s) / min(requests, FAST_MEMORY)
        # The plain mean of the first requests, then an exponential one over time H.
        weight = min(1 / LEAST_REQUESTS, (now_s - watch.seen_s) / self._window_s)
        watch.usual_s += (wait_s - watch.usual_s) * (
            1 / requests if requests <= LEAST_REQUESTS else weight
        )
        watch.seen_s = now_s
        if (
            not watch.due
            and watch.requests >= LEAST_REQUESTS
            and watch.present_s > self._ratio * watch.usual_s
            and watch.present_s > TRIFLE * whole_s
            and watch.present_s * node.uses > WORTH * whole_s
        ):
            watch.due = True

    def is_due(self, node: Node) -> bool:
        watch = node.state
        return isinstance(watch, Watch) and watch.due

    def copied(self, node: Node, copies: int, now_s: float) -> None:
        """A copy was decided: what it waits from now on is its usual time until it doubles again."""
        watch = node.state
        assert isinstance(watch, Watch)
        watch.due = False
        watch.usual_s = watch.present_s
        watch.copies = copies
        watch.until_s = now_s + self._window_s
        self.replications += 1

    def split(self, node: Node, replica: str, copies: int, now_s: float) -> None:
        """Give the new copy its part of the subtree: one in ``copies`` of the load, heaviest first."""
        children = sorted(node.children.values(), key=lambda c: (-c.load_s, c.atoms[0].id))
        room_s = sum(child.load_s for child in children) / copies
        for child in children:
            if child.load_s and child.load_s <= room_s:
                room_s -= child.load_s
                child.moved = replica, now_s + self._window_s

    def given_to(self, node: Node, now_s: float) -> str | None:
        """The replica that a node was given to within the last H."""
        if node.moved is None:
            return None
        replica, until_s = node.moved
        if now_s < until_s:
            return replica
        node.moved = None
        return None

    def nowhere(self, node: Node) -> None:
        """All replicas have it already."""
        watch = node.state
        assert isinstance(watch, Watch)
        watch.due = False
        watch.usual_s = watch.present_s

    def copies(self, node: Node, now_s: float) -> int:
        """Copies that replication decided within the last H."""
        watch = node.state
        return watch.copies if isinstance(watch, Watch) and now_s < watch.until_s else 1


def key_node(leaf: Node) -> Node:
    """The key portion of a path that ends at ``leaf``: its deepest node longer than all before it.

    The root for an empty path; a path's first node always qualifies.
    """
    node = leaf
    while node.parent is not None and 2 * node.tokens <= node.end_tokens:
        node = node.parent
    return node
