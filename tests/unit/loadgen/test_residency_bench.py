"""The residency benchmark says what both sides pay, and that they agree."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from loadgen.bench import residency as bench


def test_rows_name_what_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = CliRunner().invoke(bench.residency, ["--json", str(out), "--requests", "400"])
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())
    assert [(r["side"], r["what"]) for r in rows] == [
        ("engine", "cache alone"),
        ("engine", "cache, ledger, encoding"),
        ("qas", "predicted"),
        ("qas", "exact"),
    ]
    assert all(0 < r["us_per_request"] < 10_000 for r in rows)
    assert 50 < rows[1]["bytes_per_request"] < 2_000
