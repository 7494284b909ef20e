"""Clients made from the published schema, against the real engine: SGLang's own handlers see the bodies.

``PRISM_SCHEMA_REAL_CASES`` sets how many cases are drawn (100).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .schema_cases import check_cases

pytest.importorskip("schemathesis")

pytestmark = [pytest.mark.serve, pytest.mark.real_engine]

CASES = int(os.environ.get("PRISM_SCHEMA_REAL_CASES", "100"))

CONFIG: dict[str, Any] = {
    "extends": "cpu-smollm2",
    "model": {"name": "tiny", "path": "models:random-tiny"},
    "engine": {
        "args": {
            "max_total_tokens": 20_000,
            "context_length": 4096,
            "constrained_json_disable_any_whitespace": True,
        }
    },
    "limits": {"max_tokens": 8, "default_max_tokens": 4},
}


def test_no_case_of_the_schema_is_a_5xx_on_the_real_engine(
    run_app: Callable[..., httpx.Client], random_tiny: Any
) -> None:
    check_cases(run_app(CONFIG), CASES)
