"""What an SLO asks, how it is written, and goodput by it."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.metrics import late_warning, summarize
from loadgen.rows import Outcome, RequestRow
from loadgen.slo import Slo, parse_slo


def row(scheduled_s: float = 1.0, **fields: Any) -> RequestRow:
    values: dict[str, Any] = {
        "id": "1",
        "scheduled_s": scheduled_s,
        "sent_s": scheduled_s,
        "chunk_s": [scheduled_s + 0.5, scheduled_s + 0.9],
        "ended_s": scheduled_s + 1.0,
        "outcome": Outcome.ANSWERED,
        "output_tokens": 3,
        "prompt_tokens": 100,
        "cached_tokens": 50,
    }
    return RequestRow(**(values | fields))


def test_every_limit_has_to_be_kept() -> None:
    assert Slo(0.5, 0.2, 1.0).met(row())
    assert not Slo(ttft_s=0.49).met(row())
    assert not Slo(tpot_s=0.19).met(row())
    assert not Slo(latency_s=0.99).met(row())
    assert not Slo().met(row(outcome=Outcome.TRUNCATED))


def test_one_token_has_no_tpot_to_miss_but_no_stream_shows_no_ttft() -> None:
    assert Slo(tpot_s=0.001).met(row(output_tokens=1))
    assert not Slo(ttft_s=10.0).met(row(streamed=False))
    assert Slo(latency_s=1.0).met(row(streamed=False))


def test_it_is_written_in_seconds() -> None:
    assert parse_slo("ttft=0.5, e2e=10") == Slo(ttft_s=0.5, latency_s=10.0)
    assert parse_slo("tpot=0.05").to_json() == {"ttft_s": None, "tpot_s": 0.05, "latency_s": None}


@pytest.mark.parametrize("text", ["", "ttft", "ttft=x", "ttft=0", "p99=1", "ttft=1,ttft=2"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"SLO|limit"):
        parse_slo(text)


def test_goodput_counts_good_answers_of_all_requests_after_the_warm_up() -> None:
    rows = [
        row(0.0, chunk_s=[9.0]),
        row(1.0),
        row(2.0, chunk_s=[5.0], ended_s=5.0),
        row(3.0, outcome=Outcome.REFUSED, ended_s=3.0, chunk_s=[]),
    ]
    summary = summarize(rows, from_s=1.0, slo=Slo(ttft_s=0.6))
    assert summary["requests"] == 3
    assert summary["goodput"]["share"] == pytest.approx(1 / 3)
    assert summary["goodput"]["per_s"] == pytest.approx(1 / 4)  # the last answer came at 5 s
    assert summary["answered_per_s"] == pytest.approx(2 / 4)
    assert summarize(rows)["goodput"] is None


def test_lanes_and_replicas_have_figures_of_their_own() -> None:
    rows = [row(lane="hot", replica="a"), row(lane="cold", replica="a", cached_tokens=0), row()]
    summary = summarize(rows)
    assert summary["by_lane"]["cold"]["hit_rate"] == 0.0
    assert summary["by_lane"]["hot"]["hit_rate"] == 0.5
    assert summary["by_replica"]["a"]["answered"] == 2
    assert summary["by_replica"]["unknown"]["ttft_s"]["p50"] == pytest.approx(0.5)


def test_groups_have_gaps_terms_goodput_and_failures_of_their_own() -> None:
    refused = row(replica=None, outcome=Outcome.REFUSED, status=429, chunk_s=[])
    cut = row(replica="b", outcome=Outcome.TRUNCATED)
    slow = row(replica="b", ended_s=9.0)
    terms = {"ttft": {"queue_wait_s": 0.1, "prefill_s": 0.2, "first_token_s": 0.05}}
    rows = [row(replica="a", prism=terms), slow, cut, refused]
    groups = summarize(rows, slo=Slo(latency_s=2.0))["by_replica"]
    assert [(n, g["requests"], g["answered"]) for n, g in groups.items()] == [
        ("a", 1, 1),
        ("b", 2, 1),
        ("unknown", 1, 0),
    ]
    assert groups["b"]["errors"] == {"truncated": 1}
    assert groups["unknown"]["errors"] == {"refused 429": 1}
    assert groups["a"]["itl_s"]["max"] == pytest.approx(0.4)
    assert groups["a"]["ttft_terms_s"]["prefill_s"]["mean"] == pytest.approx(0.2)
    assert groups["unknown"]["ttft_s"] == {}
    assert [g["goodput"]["share"] for g in groups.values()] == [1.0, 0.0, 0.0]
    per_s = [g["goodput"]["per_s"] for g in groups.values()]
    assert sum(per_s) == summarize(rows, slo=Slo(latency_s=2.0))["goodput"]["per_s"]
    assert summarize(rows)["by_replica"]["a"]["goodput"] is None


def test_a_late_generator_is_warned_of() -> None:
    late = summarize([row(sent_s=1.05)])
    assert late_warning(summarize([row()]), 1, 4) is None
    assert "with 1 process (P99 50 ms)" in (late_warning(late, 1, 4) or "")
    assert "try --processes 4," in (late_warning(late, 3, 4) or "")
    full = late_warning(late, 4, 4) or ""
    assert "with 4 processes" in full
    assert "--processes" not in full
    assert "another machine" in full
    assert late_warning(summarize([]), 1, 4) is None
