"""DART as SGLang's radix cache: reads hints with requests, owns spans, tells what it keeps.

Imported in SGLang's scheduler process only. Hints change what is kept and nothing else; whatever is
wrong with one is counted, and never reaches the scheduler as an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    CacheRequestOutcome,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from prism_ray.dart.anchors import AnchorMark, CacheObserver, PathKey
from prism_ray.dart.control import RetentionControl, RetentionStats
from prism_ray.dart.demand import DemandState
from prism_ray.dart.hints import (
    ANCHORS_ACTION,
    DEMAND_ACTION,
    OFFSET_MAX,
    BadHint,
    parse_anchors,
    parse_demand,
)
from prism_ray.dart.node import GENERATED, PRIVATE, Anchor, NodeKind
from prism_ray.dart.retention import make_strategy
from prism_ray.dart.sglang_plugin_tree import DartNode, DartTreeCore

logger = logging.getLogger(__name__)


class DartRadixCache(UnifiedRadixCache):  # type: ignore[misc]
    """SGLang's unified radix cache over a DartTreeCore, steered by requests' hints.

    ``install`` is called once, by the factory, before the first request.
    """

    tree_core: DartTreeCore

    def install(self, retention: str, pool_tokens: int, **protection: Any) -> None:
        """Choose the strategy, and size protection (see RetentionControl)."""
        demand = DemandState()
        core = self.tree_core
        core.strategy = make_strategy(retention, demand)
        self.control: RetentionControl[DartNode] = RetentionControl(
            core, demand, pool_tokens=pool_tokens, **protection
        )
        core.before_eviction = self.control.refresh
        core.evicted = self._count_evicted
        self._evicted_tokens = dict.fromkeys(NodeKind, 0)
        self._hints_ignored = 0
        # Freed with the request, however that ends; only ever looked up, never walked.
        self._marks: WeakKeyDictionary[Any, tuple[AnchorMark, ...]] = WeakKeyDictionary()

    @property
    def observer(self) -> CacheObserver | None:
        """Who hears what becomes resident and what goes; set it before the first request."""
        return self.tree_core.index.observer

    @observer.setter
    def observer(self, observer: CacheObserver | None) -> None:
        self.tree_core.index.observer = observer

    def walk(self) -> Iterator[tuple[PathKey, int, int]]:
        """(path key, start, end) of every place of which tokens are resident."""
        return self.tree_core.index.places()

    def retention_stats(self) -> RetentionStats:
        """Counts since the cache was built. Costs a walk over the protected anchors."""
        private, generated, reusable, system = (self._evicted_tokens[kind] for kind in NodeKind)
        protected = self.control.protection.protected_tokens()
        return RetentionStats(private, generated, reusable, system, protected, self._hints_ignored)

    # SGLang's calls

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        # The scheduler matches a request before its batch allocates: its hints act in time.
        req = params.req
        if req is not None:
            if req not in self._marks:
                self._marks[req] = self._admit(req)
            self.control.waits(req.rid, (mark.path_key for mark in self._marks[req]))
        return super().match_prefix(params)

    def finish_storage_prefetch_admission(
        self, request: CacheRequestHandle, fulfilled_tokens: int, reason: str | None
    ) -> None:
        # Called with or without a storage, once for each request that goes into a batch.
        super().finish_storage_prefetch_admission(request, fulfilled_tokens, reason)
        self.control.waits_no_more(request.rid)

    def finish(self, handle: CacheRequestHandle, outcome: CacheRequestOutcome) -> None:
        super().finish(handle, outcome)
        self.control.waits_no_more(handle.rid)

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        core, marks = self.tree_core, self._marks.get(req, ())
        prompt_tokens = len(req.origin_input_ids)
        core.anchors = _anchors(marks, prompt_tokens)
        core.inserted_tokens = 0
        try:
            super().checkpoint(req, up_to=up_to, **kwargs)
        finally:
            core.anchors = ()
        if core.inserted_tokens:
            page = self.page_size
            whole = (m._replace(offset_tokens=m.offset_tokens // page * page) for m in marks)
            core.index.inserted(whole, core.inserted_tokens)

    def reset(self) -> None:
        super().reset()
        if hasattr(self, "control"):  # SGLang's constructor resets before there is one
            self.control.emptied()

    # Hints

    def _admit(self, req: Any) -> tuple[AnchorMark, ...]:
        """Take a request's hints, at its first match; its marks."""
        self.control.observe_request()
        marks: tuple[AnchorMark, ...] = ()
        for action in req.kv_hints.actions if req.kv_hints is not None else ():
            try:
                if action.action_type == ANCHORS_ACTION:
                    marks = parse_anchors(action.payload)
                elif action.action_type == DEMAND_ACTION:
                    news = parse_demand(action.payload, self.control.demand)
                    if news is not None:
                        self.control.hint(*news)
            except BadHint as error:
                self._ignore(error)
        return marks

    def _ignore(self, error: BadHint) -> None:
        self._hints_ignored += 1
        if self._hints_ignored == 1:
            logger.warning("a hint was ignored; further ones are only counted: %s", error)

    def _count_evicted(self, node: DartNode) -> None:
        self._evicted_tokens[node.kind] += node.tokens

    def check_integrity(self) -> None:
        """Raise AssertionError if SGLang's invariants or ours do not hold; for tests."""
        self.sanity_check()
        self.tree_core.check_integrity()
        protection = self.control.protection
        assert protection.protected_tokens() <= protection.cap_tokens


def _anchors(marks: Sequence[AnchorMark], prompt_tokens: int) -> list[Anchor]:
    """A request's marks as the tree takes them; behind the prompt all is generated."""
    anchors = [Anchor(m.offset_tokens, m.owner) for m in marks if m.offset_tokens <= prompt_tokens]
    return [*anchors, Anchor(prompt_tokens, PRIVATE), Anchor(OFFSET_MAX, GENERATED)]
