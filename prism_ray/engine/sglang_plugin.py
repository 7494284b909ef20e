"""SGLang's plugin entry point: what we add to SGLang's own registries, in every process of an engine.

Loaded through the entry point group ``sglang.srt.plugins``; engines that want nothing else loaded set
``SGLANG_PLUGINS=prism_ray``. The cache itself is in ``sglang_cache``.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from prism_ray.dart import sglang_plugin as dart
from prism_ray.engine.sglang_events import EVENTS_ADDRESS_VARIABLE
from prism_ray.engine.sglang_steps import install_from_environment
from prism_ray.engine.sglang_version import check_sglang_version

RADIX_CACHE_BACKEND = "prism"
"""Name for ``--radix-cache-backend``: SGLang's own cache, with the event probe."""

DART_BACKEND = dart.BACKEND


def backend_of(retention: str) -> str:
    """The radix cache backend for a retention policy: ``lru`` is SGLang's own cache."""
    return RADIX_CACHE_BACKEND if retention == dart.ENGINES_OWN else DART_BACKEND


logger = logging.getLogger(__name__)


def register() -> None:
    """Entry point. Idempotent. Raises UnsupportedSglang, which SGLang logs and then goes on."""
    check_sglang_version()
    from sglang.srt.mem_cache.registry import (
        get_radix_cache_factory,
        register_radix_cache_backend,
    )

    if get_radix_cache_factory(RADIX_CACHE_BACKEND) is None:
        register_radix_cache_backend(RADIX_CACHE_BACKEND, _build_cache)
    dart.register(_build_dart_cache)
    _register_cpu_attention()
    install_from_environment()


def _build_cache(context: Any) -> Any:
    from prism_ray.engine.sglang_cache import build_prism_cache

    return build_prism_cache(context)


def _build_dart_cache(context: Any) -> Any:
    if EVENTS_ADDRESS_VARIABLE not in os.environ:  # SGLang by itself, with no replica to report to
        return dart.build_cache(context)
    from prism_ray.engine.sglang_cache import build_dart_cache

    return build_dart_cache(context)


def _register_cpu_attention() -> None:
    # On GPU hosts the backend is merely one more name that nobody selects.
    try:
        from prism_ray.engine.cpu import attention
    except ImportError as error:
        logger.info("no CPU attention backend: %s", error)
        return
    attention.register()
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        # Dozens of models cannot be imported without CUDA; none of them could be served here.
        logging.getLogger("sglang.srt.models.registry").setLevel(logging.ERROR)
