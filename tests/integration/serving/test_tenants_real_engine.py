"""The radix cache of the real engine keeps tenants apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .tenant_checks import check_that_tenants_share_nothing

pytestmark = [pytest.mark.serve, pytest.mark.real_engine]

CONFIG: dict[str, Any] = {
    "extends": "cpu-smollm2",
    "scheduler": {"policy": "qas"},  # its reasons tell of a bucket, which must be the tenant's own
    "model": {"name": "tiny", "path": "models:random-tiny"},
    "engine": {
        "args": {
            "max_total_tokens": 20_000,
            "context_length": 4096,
            "chunked_prefill_size": 1024,
        }
    },
}


def test_equal_documents_of_two_tenants_are_never_shared(
    run_app: Callable[..., httpx.Client], random_tiny: Any
) -> None:
    check_that_tenants_share_nothing(run_app(CONFIG))
