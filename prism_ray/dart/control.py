"""Steers a cache between evictions: demand tables, requests that wait or came, F_t. No tree in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple

from prism_ray.dart.anchors import PathKey
from prism_ray.dart.demand import DemandState
from prism_ray.dart.protection import A, AnchoredTree, ProtectionSet
from prism_ray.dart.retention import CONTINUED
from prism_ray.model import DemandTable


class RetentionStats(NamedTuple):
    """Counts since a cache was built, and the protected tokens of now. Tokens, but for the hints."""

    evicted_tokens_private: int = 0
    evicted_tokens_generated: int = 0
    evicted_tokens_reusable: int = 0
    evicted_tokens_system: int = 0
    protected_tokens: int = 0
    hints_ignored_total: int = 0


class RetentionControl(Generic[A]):
    """Keeps a tree's keys and protection up to date with its demand, for our tree and an engine's.

    F_t is taken at the first eviction after a demand table came (or after the system prefixes outgrew
    the cap) and holds until the next one. ``protect_anchors`` and ``protect_share`` size it (A8),
    ``anchor_rank`` chooses (A10).
    """

    def __init__(
        self,
        tree: AnchoredTree[A],
        demand: DemandState,
        *,
        pool_tokens: int,
        protect_anchors: int = 20,
        protect_share: float = 0.5,
        anchor_rank: str = "paths",
    ) -> None:
        if not 0 <= protect_share <= 1:
            raise ValueError(f"protect_share is a fraction, got {protect_share}")
        self.demand = demand
        self.protection: ProtectionSet[A] = ProtectionSet(
            tree,
            demand,
            anchors=protect_anchors,
            cap_tokens=int(pool_tokens * protect_share),
            by_paths=anchor_rank == "paths",
        )
        self._tree = tree
        self._stale = False
        self._system_tokens = 0
        self._waiting: dict[str, tuple[PathKey, ...]] = {}

    def hint(self, table: DemandTable, epoch: str = "") -> bool:
        """Take a demand table; False if its version is not newer than the one in force."""
        changed = self.demand.apply(table, epoch)
        if changed is None:
            return False
        self._forget_keys(changed)
        self._stale = True  # the same rows again: others may wait by now
        return True

    def observe_request(self, path_keys: Sequence[PathKey] = ()) -> None:
        """Count an admitted request: without new tables demand decays by these (A20).

        Of a replay with a known future the path keys of the request's anchors are used up.
        """
        self._forget_keys(self.demand.observe_request())
        if self.demand.future is not None:
            self.demand.future.use(path_keys)
            for key in path_keys:
                self._tree.rekey(self._tree.index.nodes_of(key))

    def waits(self, request_id: str, path_keys: Iterable[PathKey | None]) -> None:
        """The engine has looked a request up, and until ``waits_no_more`` it is not admitted.

        These are the queued requests that rank anchors (A10): an engine shows its cache a waiting
        request by looking it up, under FCFS only the head of its queue, under cache-aware policies
        the queue. Requests that wait elsewhere, in a scheduler before the engine, count in P̂.
        """
        self._waiting[request_id] = tuple(key for key in path_keys if key is not None)

    def waits_no_more(self, request_id: str) -> None:
        """A request was admitted or given up; nothing happens if it never waited."""
        self._waiting.pop(request_id, None)

    def _count_waiting(self) -> Counter[PathKey]:
        return Counter(key for keys in self._waiting.values() for key in keys)

    def _forget_keys(self, keys: Sequence[bytes]) -> None:
        if CONTINUED in keys:  # no node's own row, but the key of every private one rests on it
            self._tree.rekey(tuple(self._tree.evictable()))
        for key in keys:
            self._tree.rekey(self._tree.index.nodes_of(key))
        self._stale = self._stale or bool(keys)

    def refresh(self) -> None:
        """Before an eviction: take F_t anew if something that decides it has changed."""
        if self._stale or self._tree.index.system_tokens != self._system_tokens:
            self._stale = False
            self._system_tokens = self._tree.index.system_tokens
            self.protection.refresh(self._count_waiting)

    def emptied(self) -> None:
        """The tree was dropped whole: F_t is taken anew from what comes."""
        self._stale = True
