"""SGLang's radix caches without an engine: built on CPU tensors, driven like its scheduler drives them.

``prepare_process`` must run before anything of SGLang is imported. Measures nothing by itself.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from prism_ray.dart.anchors import AnchorMark
from prism_ray.dart.hints import envelope
from prism_ray.engine.cpu.environment import STAND_IN_DIR, cpu_environment, cuda_driver_exists

ARMS = ("dart", "python-lru", "rust-lru")
ROWS = 64


def prepare_process() -> None:
    """Let this process import SGLang on a machine without a GPU."""
    if cuda_driver_exists():
        return
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", cpu_environment()["SGLANG_USE_CPU_ENGINE"])
    if str(STAND_IN_DIR) not in sys.path:
        sys.path.insert(0, str(STAND_IN_DIR))


def build_cache(
    arm: str, pool_tokens: int, *, page_size: int = 1, context: int = 65_536, **dart: Any
) -> Any:
    """A cache of one arm with a pool of its own. ``dart``: retention and protection of arm ``dart``."""
    import torch
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from prism_ray.dart.sglang_plugin import register
    from prism_ray.dart.sglang_plugin_cache import DartRadixCache
    from prism_ray.dart.sglang_plugin_tree import DartFullComponent

    register()
    kind = (torch.float32, "cpu", None, False)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(ROWS, context, "cpu", False),
        token_to_kv_pool_allocator=(
            TokenToKVPoolAllocator(pool_tokens, *kind)
            if page_size == 1
            else PagedTokenToKVPoolAllocator(pool_tokens, page_size, *kind)
        ),
        page_size=page_size,
        tree_components=(ComponentType.FULL,),
        tree_core_backend={"python-lru": "python", "rust-lru": "rust"}.get(arm, arm),
    )
    if arm != "dart":
        return UnifiedRadixCache(params)
    params.component_registry_override = {ComponentType.FULL: DartFullComponent}
    cache = DartRadixCache(params)
    cache.install(dart.pop("retention", "dart"), pool_tokens, **dart)
    return cache


class CacheRequest:
    """What a radix cache reads of SGLang's ``Req``."""

    def __init__(
        self,
        name: str,
        prompt: Sequence[int],
        marks: Sequence[AnchorMark] = (),
        demand: Mapping[str, Any] | None = None,
        salt: str | None = None,
        hints: Any = None,
        extra_key: str | None = None,
    ) -> None:
        from sglang.srt.managers.kv_hints import decode_kv_hints_envelope
        from sglang.srt.managers.schedule_batch import ReqKvInfo
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        self.rid = name
        self.cache_request_handle = CacheRequestHandle(name, attempt_id=0)
        self.origin_input_ids = array("q", prompt)
        self.full_untruncated_fill_ids = array("q", prompt)
        self.kv = ReqKvInfo()
        self.extra_key, self.cache_salt = extra_key, salt
        self.priority, self.session, self.session_id, self.kv_rotation_base = 0, None, None, None
        self.lock: Any = None
        self.last_node: Any = None
        self.prefix_len = 0
        self.ended = False
        given = hints if hints is not None else envelope(name, marks, demand)
        self.kv_hints = None if given is None else decode_kv_hints_envelope(given)

    def finished(self) -> bool:
        return self.ended


class CacheDriver:
    """Takes requests through a cache: admit, prefill, generate, finish or drop."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self._pool = cache.req_to_token_pool
        self._slots = cache.token_to_kv_pool_allocator
        self._free_rows = list(range(1, ROWS + 1))

    def match(self, request: CacheRequest) -> Any:
        """The scheduler's look-up at admission: all but the last token can be cached."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        ids = request.full_untruncated_fill_ids
        key = RadixKey(ids, request.extra_key, limit=len(ids) - 1, cache_salt=request.cache_salt)
        return self.cache.match_prefix(MatchPrefixParams(key=key, req=request))

    def give_up(self, request: CacheRequest) -> None:
        """The request is aborted before it was admitted."""
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestOutcome

        self.cache.finish(request.cache_request_handle, CacheRequestOutcome.ABORT)

    def admit(self, request: CacheRequest) -> bool:
        """Match, lock and give slots to the whole prompt; False if the pool has not enough."""
        found = self.match(request)
        request.last_node, request.prefix_len = found.last_device_node, found.device_prefix_len
        request.lock = self.cache.lock(found.last_device_node)
        request.kv.req_pool_idx = row = self._free_rows.pop()
        request.kv.cache_protected_len = request.kv.kv_allocated_len = request.prefix_len
        self._pool.write(
            (row, slice(0, request.prefix_len)), self.cache.prefix_device_indices(request)
        )
        self.cache.finish_storage_prefetch_admission(
            request.cache_request_handle, fulfilled_tokens=0, reason=None
        )
        if self._extend(request, len(request.origin_input_ids)):
            return True
        self._release(request, checkpointed=False)
        return False

    def _extend(self, request: CacheRequest, end: int) -> bool:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        page, kv = self._slots.page_size, request.kv
        need = -(-end // page) * page - kv.kv_allocated_len
        if need > 0:
            short = need - self._slots.available_size()
            if short > 0:
                self.cache.evict_for_alloc(EvictParams(num_tokens=short))
            slots = self._slots.alloc(need)
            if slots is None:
                return False
            held = kv.kv_allocated_len
            self._pool.write(
                (kv.req_pool_idx, slice(held, held + need)), slots.to(dtype=slots.dtype)
            )
            kv.kv_allocated_len = held + need
        return True

    def prefill(self, request: CacheRequest, up_to: int | None = None) -> None:
        """The prompt (or its front, a chunk) is computed: the cache takes it."""
        end = len(request.origin_input_ids) if up_to is None else up_to
        self.cache.checkpoint(request, up_to=end)

    def generate(self, request: CacheRequest, tokens: Sequence[int]) -> bool:
        request.full_untruncated_fill_ids.extend(tokens)
        return self._extend(request, len(request.full_untruncated_fill_ids))

    def finish(self, request: CacheRequest) -> None:
        """The answer is complete: the cache takes all of it, and the request gives the rest back."""
        request.ended = True
        self.cache.checkpoint(request, up_to=len(request.full_untruncated_fill_ids))
        self._release(request, checkpointed=True)

    def drop(self, request: CacheRequest) -> None:
        """The request is aborted or retracted: nothing more goes into the cache."""
        self._release(request, checkpointed=False)

    def _release(self, request: CacheRequest, *, checkpointed: bool) -> None:
        kv = request.kv
        row = self._pool.req_to_token[kv.req_pool_idx]
        own = row[kv.cache_protected_len : kv.kv_allocated_len].long()
        if len(own):
            self._slots.free(own)
        self.cache.unlock(request.lock)
        request.lock = None
        self.cache.on_release(request, checkpointed=checkpointed)
        self._free_rows.append(kv.req_pool_idx)
        request.kv = type(kv)()

    def serve(self, request: CacheRequest, answer: Sequence[int] = ()) -> int:
        """A whole request; its cached tokens, or -1 if the pool was too small."""
        if not self.admit(request):
            return -1
        cached = request.prefix_len
        self.prefill(request)
        if answer and not self.generate(request, answer):
            self.drop(request)
            return -1
        self.finish(request)
        return cached

    def check_pool(self) -> None:
        """AssertionError if a slot is lost or held twice; no request may be running."""
        tree, free = self.cache.evictable_size(), self._slots.available_size()
        assert tree + free == self._slots.size, f"{tree} cached + {free} free of {self._slots.size}"
        held = self.cache.all_values_flatten().tolist()
        assert len(set(held)) == len(held) == tree


def node_shape(cache: Any) -> SimpleNamespace:
    """Number of nodes and cached tokens of a Python tree core."""
    core = cache.tree_core
    return SimpleNamespace(nodes=len(core._node_arena) - 1, tokens=core.evictable_size())
