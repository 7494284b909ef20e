"""`prism-loadgen run` from file to table, and the group around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli import main
from loadgen.requests_file import read_requests
from loadgen.rows import PlannedRequest, RunRecord
from loadgen.sources import Wording, prepare_body, schedule


def line(behaviour: str = "plain", **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": behaviour}]}
    return json.dumps({"body": body, **fields})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text(f"{line(timestamp=5000)}\n\n{line(timestamp=5200, id='b')}\n")
    return path


def invoke(*args: object) -> Any:
    return CliRunner().invoke(main, [str(a) for a in args])


class TestRun:
    def test_it_sends_the_file_and_writes_rows_and_table(
        self, peer: Any, file: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out.json"
        result = invoke(
            "run", file, "--base-url", peer.url, "--out", out, "--report", "--flush",
            "--model", "m", "--max-tokens", 3, "--api-key", "sesame",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert "2 answered" in result.output
        assert "50.0%" in result.output
        assert peer.flushes == 1
        for body in peer.bodies:
            assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 3, True)
            assert body["stream_options"] == {"include_usage": True}
            assert body["prism"] == {"report": True}
        record = RunRecord.read(out)
        assert [r.scheduled_s for r in record.rows] == pytest.approx([0.0, 0.2])
        assert record.config["arrivals"] == "file"
        assert "sesame" not in out.read_text()

    def test_a_failed_request_is_a_failed_run(self, peer: Any, tmp_path: Path) -> None:
        path = tmp_path / "requests.jsonl"
        path.write_text(line("full") + "\n" + line())
        result = invoke("run", path, "--base-url", peer.url, "--json")
        assert result.exit_code == 1
        summary = json.loads(result.stdout)
        assert summary["outcomes"] == {"answered": 1, "refused": 1}
        assert summary["errors"] == {"refused 429 queue_full": 1}

    def test_a_traces_hit_rate_has_its_bounds_beside_it(self, peer: Any) -> None:
        options = ["--limit", 20, "--texts", "made", "--rate", 400]
        asked = ["run", "zipf_hotspot", "--base-url", peer.url, *options]
        result = invoke(*asked, "--pool-tokens", 1200)
        assert result.exit_code == 0, result.output
        (line,) = (line for line in result.output.splitlines() if line.startswith("hit rate"))
        assert all(f"B{number} " in line for number in (0, 1, 4))
        bounds = json.loads(invoke(*asked, "--json").stdout)["bounds"]
        assert 0 < bounds["b0"] < bounds["b1"] < 1
        assert "b4" not in bounds, "nothing is known of the pool"

    def test_a_closed_loop_has_no_arrivals(self, peer: Any, file: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.json"
        result = invoke(
            "run", file, "--base-url", peer.url, "--concurrency", 1, "--out", out, "--json"
        )
        assert result.exit_code == 0, result.output
        summary = json.loads(result.stdout)
        assert summary["arrival_period_s"] is None
        assert summary["answered_in_arrival_period"] is None
        record = RunRecord.read(out)
        assert record.arrival_period_s == 0.0
        assert record.config["arrivals"] is None

    def test_a_traces_bodies_name_the_servers_model_unless_told_another(
        self, peer: Any, file: Path
    ) -> None:
        asked = ["--base-url", peer.url, "--limit", 2, "--texts", "made", "--rate", 400]
        assert invoke("run", "zipf_hotspot", *asked).exit_code == 0
        assert invoke("run", "zipf_hotspot", *asked, "--model", "other").exit_code == 0
        assert invoke("run", file, "--base-url", peer.url).exit_code == 0
        names = [body.get("model") for body in peer.bodies]
        assert names == ["tiny", "tiny", "other", "other", None, None]

    def test_bodies_have_no_bounds(self, peer: Any, file: Path) -> None:
        result = invoke("run", file, "--base-url", peer.url)
        assert "bounds" not in result.output

    def test_a_bad_file_is_one_line_of_error(self, tmp_path: Path) -> None:
        path = tmp_path / "requests.jsonl"
        path.write_text("{}\n")
        result = invoke("run", path)
        assert result.exit_code == 1
        assert "requests.jsonl:1" in result.output

    def test_a_server_that_cannot_flush_is_told_so(self, file: Path) -> None:
        result = invoke("run", file, "--base-url", "http://127.0.0.1:9", "--flush")
        assert result.exit_code == 1
        assert "cannot flush" in result.output


class TestRequestsFile:
    def test_times_are_seconds_from_the_earliest_line(self, file: Path) -> None:
        requests = read_requests(file)
        assert [r.at_s for r in requests] == pytest.approx([0.0, 0.2])
        assert [r.id for r in requests] == ["", "b"]

    @pytest.mark.parametrize(
        "bad",
        [
            "no json",
            "[]",
            '{"body": []}',
            '{"body": {}, "timestamp": "1"}',
            '{"body": {}, "timestamp": true}',
            '{"body": {}, "headers": {"a": 1}}',
        ],
    )
    def test_a_bad_line_is_named_by_its_number(self, tmp_path: Path, bad: str) -> None:
        path = tmp_path / "requests.jsonl"
        path.write_text(f"{line()}\n{bad}\n")
        with pytest.raises(ValueError, match=r"requests\.jsonl:2"):
            read_requests(path)

    def test_a_path_may_be_written_with_v1(self, tmp_path: Path) -> None:
        path = tmp_path / "requests.jsonl"
        path.write_text('{"body": {}, "path": "/v1/completions"}')
        assert read_requests(path)[0].path == "completions"


class TestPreparation:
    def test_what_the_body_says_about_streaming_stands(self) -> None:
        body = prepare_body({"stream": False}, Wording())
        assert body == {"stream": False}

    def test_options_are_merged_and_the_original_stays(self) -> None:
        original = {"prism": {"segments": "off"}, "stream_options": {"x": 1}}
        body = prepare_body(original, Wording(report=True))
        assert body["prism"] == {"report": True, "segments": "off"}
        assert body["stream_options"] == {"include_usage": True, "x": 1}
        assert original == {"prism": {"segments": "off"}, "stream_options": {"x": 1}}

    def test_file_times_are_kept_or_scaled_to_the_rate(self) -> None:
        requests = [PlannedRequest(t, {}) for t in (0.0, 1.0, 4.0)]
        assert schedule(requests, "file", None, 0) == requests
        assert [r.at_s for r in schedule(requests, "file", 1.0, 0)] == [0.0, 0.5, 2.0]
        with pytest.raises(ValueError, match="no timestamps"):
            schedule(requests[:1], "file", 1.0, 0)

    def test_a_process_needs_a_rate_and_repeats_under_its_seed(self) -> None:
        requests = [PlannedRequest(0.0, {})] * 3
        with pytest.raises(ValueError, match="--rate"):
            schedule(requests, "poisson", None, 0)
        assert schedule(requests, "poisson", 2.0, 1) == schedule(requests, "poisson", 2.0, 1)
        assert schedule(requests, "poisson", 2.0, 1) != schedule(requests, "poisson", 2.0, 2)


class TestGroup:
    def test_help_lists_the_commands_of_other_modules(self) -> None:
        result = invoke("--help")
        assert result.exit_code == 0
        assert "run" in result.output
        assert "bench" in result.output
        assert "scheduler" in invoke("bench", "--help").output

    def test_an_unknown_command_is_refused(self) -> None:
        assert invoke("bench", "nothing").exit_code == 2
