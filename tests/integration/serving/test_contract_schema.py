"""Clients made from the published schema: whatever they send, no 5xx, and every 4xx in the OpenAI body.

``PRISM_SCHEMA_CASES`` sets how many cases are drawn (500).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .schema_cases import check_cases

pytest.importorskip("schemathesis")

pytestmark = pytest.mark.serve

CASES = int(os.environ.get("PRISM_SCHEMA_CASES", "500"))

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "engine": {"simulated": {"speed": 50.0}},
    "limits": {"max_tokens": 64, "default_max_tokens": 8},
}


def test_no_case_of_the_schema_is_a_5xx_and_every_4xx_has_the_openai_body(
    run_app: Callable[..., httpx.Client],
) -> None:
    check_cases(run_app(CONFIG), CASES)
