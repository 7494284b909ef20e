"""`prism-loadgen measure` against the whole application on the simulated engine: figures and report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from loadgen.cli import main
from loadgen.report.points import read_points

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2},
    "placement": {"policy": "round-robin"},
    "engine": {"simulated": {"context_length": 8192, "pool_tokens": 30_000}},
}
REQUESTS = 60


def test_a_trace_is_measured_at_two_rates_with_the_servers_own_terms(
    run_app: Callable[..., httpx.Client], tmp_path: Path
) -> None:
    client = run_app(CONFIG)
    arguments = ["measure", "zipf_hotspot", "--out", tmp_path, "--base-url", client.base_url]
    arguments += ["--texts", "made", "--report", "--rate", 10, "--rate", 30, "--ignore-eos"]
    arguments += ["--requests", REQUESTS, "--slo", "ttft=30,e2e=60", "--pool-tokens", 60_000]
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output

    points = read_points(tmp_path)
    assert [p.rate for p in points] == [10.0, 30.0]
    for point in points:
        summary = point.summary
        assert summary["outcomes"] == {
            "answered": REQUESTS - point.record.config["warm_up_requests"]
        }
        assert set(summary["by_replica"]) == {r.replica for r in point.measured}
        assert len(summary["by_replica"]) == 2
        assert set(summary["by_lane"]) <= {"hot", "cold"}
        # The terms are the server's, inside what the client waited for.
        for row in point.record.rows:
            terms = (row.prism or {})["ttft"]
            assert 0 < terms["prefill_s"] <= terms["total_s"] <= row.ttft_s
            assert row.output_tokens == 16
            assert len(row.chunk_s) > 1
        # Every prompt starts with the same system text; each run began with an empty cache.
        assert point.record.rows[0].cached_tokens == 0
        assert 0.1 < (point.hit_rate_from_start or 0.0) < (point.bounds["b1"] or 0.0)
    assert points[0].record.prompts_sha256 == points[1].record.prompts_sha256
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["points"][0]["summary"]["goodput"]["share"] == 1.0
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 7
    assert "bound B4" in page
