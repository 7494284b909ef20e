"""The radix cache of our SGLang engines: SGLang's own, plus a probe that reports what it sees.

Imported in the scheduler process only. Caching is untouched: every method calls SGLang's first and
then tells the probe, which never raises into the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    CacheRequestOutcome,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_unified_radix_cache
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from prism_ray.dart import sglang_plugin
from prism_ray.dart.sglang_plugin_cache import DartRadixCache
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.engine.sglang_probe import GuardedObserver, Probe, ReportChannel

if TYPE_CHECKING:
    _AnyCache = UnifiedRadixCache
else:
    _AnyCache = object


class ProbedCache(_AnyCache):  # type: ignore[misc, valid-type]
    """A mixin before any of SGLang's unified radix caches: a probe on the hooks that run once per step
    of a request.

    ``match_prefix`` repeats for a request that stays at the head of the queue; the admission itself
    is ``finish_storage_prefetch_admission``, which the scheduler calls once when it commits a request
    to a batch, right after that request's match.
    """

    probe: Probe | None = None

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        result = super().match_prefix(params)
        if self.probe is not None and params.req is not None:
            self.probe.matched(params.req)
        return result

    def finish_storage_prefetch_admission(
        self, handle: CacheRequestHandle, fulfilled_tokens: int, reason: str | None
    ) -> None:
        super().finish_storage_prefetch_admission(handle, fulfilled_tokens, reason)
        if self.probe is not None:
            self.probe.admitted(handle.rid)

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        super().checkpoint(req, up_to=up_to, **kwargs)
        if self.probe is not None:
            self.probe.inserted(req, up_to)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        if self.probe is not None:
            self.probe.released(req)

    def finish(self, handle: CacheRequestHandle, outcome: CacheRequestOutcome) -> None:
        super().finish(handle, outcome)
        if self.probe is not None and outcome is CacheRequestOutcome.ABORT:
            self.probe.dropped(handle.rid)

    def evictable_size(self) -> int:
        if self.probe is not None:
            self.probe.polled()
        return int(super().evictable_size())

    def update_eviction_metrics(self, num_evicted: int, start_time: float) -> None:
        super().update_eviction_metrics(num_evicted, start_time)
        if self.probe is not None:
            self.probe.evicted(num_evicted)


class PrismRadixCache(ProbedCache, UnifiedRadixCache):  # type: ignore[misc]
    """SGLang's own cache, observed."""


def build_prism_cache(context: TreeCacheBuildContext) -> Any:
    """Factory for SGLang's cache registry: its own cache with a probe."""
    return _probed(create_unified_radix_cache(context, cache_class=PrismRadixCache), context)


def build_dart_cache(context: TreeCacheBuildContext) -> Any:
    """Factory for SGLang's cache registry: DART with a probe that also tells what it keeps."""
    return _probed(sglang_plugin.build_cache(context, mixin=ProbedCache), context)


def _probed(cache: Any, context: TreeCacheBuildContext) -> Any:
    """Rank 0 alone reports, and only if a channel is named."""
    channel = ReportChannel.from_environment()
    if context.tp_rank != 0 or context.params.pp_rank != 0 or channel is None:
        return cache
    if not isinstance(cache, DartRadixCache):
        cache.probe = Probe(channel)
        return cache
    cache.probe = Probe(channel, ledger=_followed(cache), stats=cache.retention_stats)
    channel.when_asked(cache.probe.want_snapshot)
    return cache


def _followed(cache: DartRadixCache) -> CacheLedger | None:
    """What the cache holds, kept from now on; None where its strategy knows no anchors."""
    if not cache.tree_core.strategy.uses_anchors:
        return None
    ledger = CacheLedger(cache.walk)
    cache.observer = GuardedObserver(ledger)
    return ledger
