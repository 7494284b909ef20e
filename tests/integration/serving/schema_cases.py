"""Requests drawn from the published schema, and what every answer to them must be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .contract_tools import idle, wait_until

ERROR_FIELDS = {"message", "type", "param", "code"}
INFERENCE = (("/v1/chat/completions", "POST"), ("/v1/completions", "POST"))
OTHERS = (
    ("/v1/models", "GET"),
    ("/prism/", "GET"),
    ("/prism/state", "GET"),
    ("/metrics", "GET"),
    ("/flush_cache", "POST"),
)


def check_cases(client: httpx.Client, cases: int) -> Counter[int]:
    """Send so many; no 5xx, each 4xx in the OpenAI body, all books closed. How many had which status."""
    import schemathesis

    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    inference = [schema[path][method] for path, method in INFERENCE]
    bodies = [op.as_strategy(generation_mode=mode) for op in inference for mode in modes]
    rest = [schema[path][method].as_strategy() for path, method in OTHERS]
    seen: Counter[int] = Counter()

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(*bodies, *bodies, *rest))
    def check(case: Any) -> None:
        response = case.call(base_url=str(client.base_url), timeout=60)
        seen[response.status_code] += 1
        assert response.status_code < 500, (case.body, response.text)
        if response.status_code >= 400:
            assert set(response.json()["error"]) == ERROR_FIELDS, response.text

    check()
    print(f"{sum(seen.values())} cases: {dict(sorted(seen.items()))}")
    # Both kinds were really tried.
    assert seen[200] > cases / 20
    assert seen[400] > cases / 20
    wait_until(lambda: idle(client), "books did not close")
    return seen
