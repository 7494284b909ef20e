"""Registers DART with SGLang as radix-cache backend ``dart``; works without the rest of prism_ray.

``python -m sglang.launch_server … --radix-cache-backend dart`` finds it through the entry point of
this package. Settings come by environment: ``PRISM_RETENTION`` names the strategy (default ``dart``),
``PRISM_RETENTION_PARAMS`` is a JSON object with what ``RetentionParams`` has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from prism_ray.dart.params import RetentionParams
from prism_ray.dart.retention import RETENTION

BACKEND = "dart"
RETENTION_VARIABLE = "PRISM_RETENTION"
PARAMS_VARIABLE = "PRISM_RETENTION_PARAMS"
_PARAMS = {"protect_anchors": int, "protect_share": float, "anchor_rank": str}

ENGINES_OWN = "lru"
"""The strategy that is SGLang's own: its Python tree core as it is, no anchors, no hints."""


class UnsupportedByDart(ValueError):
    """This engine is set up with something that DART does not support; the message says what."""


def register(build: Callable[[Any], Any] | None = None) -> None:
    """Add the backend (``build``: another factory of the same cache) to SGLang. Idempotent."""
    from sglang.srt.mem_cache.registry import (
        get_radix_cache_factory,
        register_radix_cache_backend,
    )
    from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
        get_tree_core_factory,
        register_tree_core_backend,
    )

    if get_radix_cache_factory(BACKEND) is None:
        register_radix_cache_backend(BACKEND, build or build_cache)
    if get_tree_core_factory(BACKEND) is None:
        register_tree_core_backend(BACKEND, _build_tree_core)


def _build_tree_core(params: Any, components: Any) -> Any:
    from prism_ray.dart.sglang_plugin_tree import DartTreeCore

    return DartTreeCore(params, components)


def build_cache(context: Any, mixin: type | None = None) -> Any:
    """Factory for SGLang's registry. ``mixin`` goes in front of the cache class (a probe).

    Raises UnsupportedByDart for what the tree cannot do, ValueError for unknown settings.
    """
    from sglang.srt.mem_cache.registry import create_unified_radix_cache
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from prism_ray.dart.sglang_plugin_cache import DartRadixCache
    from prism_ray.dart.sglang_plugin_tree import DartFullComponent

    retention, protection = settings(os.environ)
    if problems := unsupported(context):
        raise UnsupportedByDart(f"radix cache backend dart does not support {', '.join(problems)}")
    if retention == ENGINES_OWN:
        context.params.tree_core_backend = "python"
        return create_unified_radix_cache(context, cache_class=_with(mixin, UnifiedRadixCache))
    context.params.tree_core_backend = BACKEND
    context.params.component_registry_override = {ComponentType.FULL: DartFullComponent}
    cache = create_unified_radix_cache(context, cache_class=_with(mixin, DartRadixCache))
    pool_tokens = int(context.params.token_to_kv_pool_allocator.size)
    cache.install(retention, pool_tokens, **protection)
    return cache


def _with(mixin: type | None, cache_class: type) -> type:
    return cache_class if mixin is None else type(cache_class.__name__, (mixin, cache_class), {})


def settings(environment: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Strategy and protection parameters. Raises ValueError that names the variable."""
    retention = environment.get(RETENTION_VARIABLE) or "dart"
    if retention not in RETENTION:
        raise ValueError(f"{RETENTION_VARIABLE}={retention!r}: one of {', '.join(RETENTION)}")
    given = environment.get(PARAMS_VARIABLE) or "{}"
    try:
        params = json.loads(given)
        if not isinstance(params, dict) or params.keys() - _PARAMS.keys():
            raise ValueError(f"an object with {', '.join(_PARAMS)}")
        read = {name: _PARAMS[name](value) for name, value in params.items()}
        RetentionParams.from_mapping(read)
        return retention, read
    except (TypeError, ValueError) as error:
        raise ValueError(f"{PARAMS_VARIABLE}={given!r}: {error}") from None


OPTIONS_REFUSED: Mapping[str, Any] = {
    "enable_dp_attention": False,
    "speculative_algorithm": None,
    "enable_lmcache": False,
    "enable_flexkv": False,
    "enable_unified_cache_external_linker": False,
    "disaggregation_mode": "null",
    "enable_session_radix_cache": False,
    "enable_streaming_session": False,
    "enable_hierarchical_cache": False,
    "disable_radix_cache": False,
    "radix_eviction_policy": "lru",
    "pp_size": 1,
}
"""SGLang's options of which DART takes no other value."""


def unsupported(context: Any) -> list[str]:
    """What of an engine's setup DART refuses, by SGLang's own option names."""
    from sglang.srt.mem_cache.allocator.page_interleave import page_interleave_shard_size

    options, params = context.server_args.resolved_dict(), context.params
    found = [
        f"--{name.replace('_', '-')} {value}"
        for name, allowed in OPTIONS_REFUSED.items()
        if (value := options[name]) != allowed
    ]
    facts = {
        "context parallelism": params.attn_cp_size > 1,
        "hybrid sliding-window models": context.is_hybrid_swa,
        "hybrid Mamba models": context.is_hybrid_ssm,
        "logical-page KV sharding": page_interleave_shard_size(params.token_to_kv_pool_allocator)
        > 1,
    }
    return [*found, *(name for name, is_so in facts.items() if is_so)]
