"""The scheduler benchmark writes one row per policy and depth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.bench import scheduler as bench
from prism_ray.model import Atom


def test_rows_name_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BLOCK_S", 0.002)
    out = tmp_path / "rows.json"
    done = CliRunner().invoke(
        bench.scheduler,
        ["--json", str(out), "--policy", "qas", "--policy", "fcfs", "--queued", "50"],
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())
    assert [(r["policy"], r["queued"], r["per_round"]) for r in rows] == [
        ("qas", 50, 8),
        ("fcfs", 50, 8),
    ]
    assert all(set(r) == {"policy", "queued", "per_round", "cache", "requests_per_s"} for r in rows)
    assert all(r["requests_per_s"] > 100 for r in rows)


def test_without_a_policy_named_the_benchmark_measures_qas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "BLOCK_S", 0.002)
    monkeypatch.setattr(bench, "BLOCKS", 2)
    out = tmp_path / "rows.json"
    done = CliRunner().invoke(bench.scheduler, ["--json", str(out), "--queued", "50"])
    assert done.exit_code == 0, done.output
    assert [(r["policy"], r["per_round"]) for r in json.loads(out.read_text())] == [("qas", 8)]


def test_a_warm_cache_holds_what_was_sent_last() -> None:
    cache = bench.WarmCache(requests=2)
    paths = [(Atom(b"system", 10), Atom(name, 5)) for name in (b"a", b"b", b"c")]
    for path in paths:
        cache.sent(path)
    assert [cache.match(path).cached_tokens for path in paths] == [10, 15, 15]
    assert cache.match((Atom(b"other", 1),)).cached_tokens == 0


def test_rounds_over_a_warm_cache_plan_along_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BLOCK_S", 0.002)
    monkeypatch.setattr(bench, "BLOCKS", 2)
    asked = []
    match = bench.WarmCache.match

    def noted(self: bench.WarmCache, path: tuple[Atom, ...]) -> object:
        asked.append(found := match(self, path))
        return found

    monkeypatch.setattr(bench.WarmCache, "match", noted)
    row = bench.measure("prism", 30, 8, seed=0, warm=True)
    assert (row.cache, row.queued) == ("warm", 30)
    assert max(found.cached_tokens for found in asked) > 214, "more than the system prefix"
