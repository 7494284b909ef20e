"""Rows keep raw times, metrics are computed from them, and a run file comes back as it was."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from loadgen.metrics import hit_rate, percentile, spread, summarize, table
from loadgen.rows import (
    Outcome,
    PlannedRequest,
    RequestRow,
    RunRecord,
    hash_arrivals,
    hash_prompts,
)


def row(scheduled_s: float = 1.0, **fields: Any) -> RequestRow:
    values: dict[str, Any] = {
        "id": "1",
        "scheduled_s": scheduled_s,
        "sent_s": scheduled_s + 0.1,
        "chunk_s": [scheduled_s + 0.5, scheduled_s + 0.7, scheduled_s + 1.1],
        "ended_s": scheduled_s + 1.2,
        "outcome": Outcome.ANSWERED,
        "status": 200,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 4,
        "lane": "hot",
        "prism": {"ttft": {"queue_wait_s": 0.1, "prefill_s": 0.2, "first_token_s": 0.05}},
    }
    return RequestRow(**(values | fields))


class TestDefinitions:
    def test_ttft_counts_from_the_scheduled_arrival_not_from_sending(self) -> None:
        assert row().ttft_s == pytest.approx(0.5)
        assert row().lateness_s == pytest.approx(0.1)

    def test_tpot_divides_by_tokens_and_gaps_are_between_chunks(self) -> None:
        assert row().tpot_s == pytest.approx(0.6 / 3)
        assert row().gaps_s == pytest.approx([0.2, 0.4])
        assert row(output_tokens=1).tpot_s is None

    def test_what_was_not_streamed_has_no_ttft(self) -> None:
        assert row(streamed=False).ttft_s is None
        assert row(streamed=False).latency_s == pytest.approx(1.2)

    def test_percentiles_are_linear_between_neighbours(self) -> None:
        assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
        assert percentile([0.0, 10.0], 99) == pytest.approx(9.9)
        assert math.isnan(percentile([], 50))

    def test_hit_rate_weighs_by_tokens_and_skips_what_is_unknown_or_failed(self) -> None:
        rows = [
            row(prompt_tokens=100, cached_tokens=100),
            row(prompt_tokens=300, cached_tokens=0),
            row(prompt_tokens=1000, cached_tokens=None),
            row(prompt_tokens=1000, cached_tokens=1000, outcome=Outcome.TRUNCATED),
        ]
        assert hit_rate(rows) == 0.25
        assert hit_rate([]) is None


class TestSummary:
    def test_failures_are_counted_by_kind_and_left_out_of_times(self) -> None:
        late = row(chunk_s=[9.0], outcome=Outcome.STREAM_ERROR, error_code="503")
        refused = row(outcome=Outcome.REFUSED, status=429, error_code="queue_full")
        summary = summarize([row(), late, refused])
        assert summary["outcomes"] == {"answered": 1, "stream_error": 1, "refused": 1}
        assert summary["errors"] == {"stream_error 200 503": 1, "refused 429 queue_full": 1}
        assert summary["ttft_s"]["count"] == 1
        assert summary["ttft_s"]["max"] == pytest.approx(0.5)
        assert summary["ttft_terms_s"]["prefill_s"]["p99"] == pytest.approx(0.2)

    def test_answers_within_the_arrival_period_tell_on_which_side_of_the_knee(self) -> None:
        summary = summarize([row(0.0), row(1.0), row(2.0), row(10.0)])
        assert summary["answered_in_arrival_period"] == 0.75
        assert summary["answered_per_s"] == pytest.approx(4 / 11.2)
        assert summarize([row(0.0)], arrival_period_s=1.2)["answered_in_arrival_period"] == 1.0

    @pytest.mark.parametrize(
        "rows", [[], [row(outcome=Outcome.CONNECTION)], [row(prism=None, chunk_s=[])], [row()]]
    )
    def test_any_run_can_be_summed_up_as_json_and_as_a_table(self, rows: list[RequestRow]) -> None:
        summary = summarize(rows)
        json.dumps(summary, allow_nan=False)
        assert f"requests   {len(rows)}" in table(summary)

    def test_the_table_shows_milliseconds(self) -> None:
        lines = table(summarize([row()])).splitlines()
        ttft = next(line for line in lines if line.startswith("TTFT"))
        assert ttft.split()[-1] == "500.0"
        assert any(line.split() == ["prefill", *["200.0"] * 6] for line in lines)

    def test_nothing_has_no_spread(self) -> None:
        assert spread([None]) == {}


class TestRunFile:
    def test_a_run_comes_back_as_it_was_written(self, tmp_path: Path) -> None:
        requests = [PlannedRequest(0.0, {"prompt": "ä"}), PlannedRequest(2.5, {})]
        record = RunRecord.of(requests, [row(), row(2.5)], config={"a": 1}, started_unix_s=7.0)
        path = tmp_path / "deep" / "run.json"
        record.write(path)
        assert RunRecord.read(path) == record
        assert record.arrival_period_s == 2.5

    def test_another_format_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "run.json"
        path.write_text('{"format": 99}')
        with pytest.raises(ValueError, match="format"):
            RunRecord.read(path)

    def test_hashes_tell_prompts_and_arrivals_apart(self) -> None:
        base = [PlannedRequest(0.5, {"a": 1, "b": 2})]
        same_prompt = [PlannedRequest(0.75, {"b": 2, "a": 1}, id="x")]
        assert hash_prompts(base) == hash_prompts(same_prompt)
        assert hash_arrivals(base) != hash_arrivals(same_prompt)
        assert hash_prompts(base) != hash_prompts([PlannedRequest(0.5, {"a": 1, "b": 3})])
        assert hash_prompts(base) != hash_prompts(base * 2)
