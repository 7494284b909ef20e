"""A measurement's files: what is averaged and what only marked, CSV, and a page that stands alone."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from loadgen.cli import main
from loadgen.measure import _line
from loadgen.report.page import write_report
from loadgen.report.points import Unequal, loads, read_points, to_json
from loadgen.rows import Outcome, PlannedRequest, RequestRow, RunRecord
from loadgen.slo import Slo

HOSTILE = '<script>alert("x")</script>'


def rows(rate: float, growth: float, count: int = 100) -> list[RequestRow]:
    found = []
    for i in range(count):
        due_s = i / rate
        ttft_s = 0.1 + growth * due_s
        found.append(
            RequestRow(
                id=str(i),
                scheduled_s=due_s,
                sent_s=due_s + 0.001,
                chunk_s=[due_s + ttft_s, due_s + ttft_s + 0.01],
                ended_s=due_s + ttft_s + 0.02,
                outcome=Outcome.ANSWERED,
                prompt_tokens=100,
                cached_tokens=20 if i < 10 else 60,
                output_tokens=2,
                replica=f"r{i % 2}",
                lane=HOSTILE,
                prism={"ttft": {"queue_wait_s": 0.07, "prefill_s": 0.02, "first_token_s": 0.01}},
            )
        )
    return found


def write(directory: Path, at: float, growth: float, seed: int, **config: Any) -> None:
    found = rows(at, growth)
    planned = [PlannedRequest(r.scheduled_s, {"n": i}) for i, r in enumerate(found)]
    config = {
        "source": HOSTILE,
        "base_url": "http://h",
        "rate": at,
        "seed": seed,
        "warm_up_requests": 10,
        "slo": Slo(ttft_s=0.2).to_json(),
        "notes": ["made texts"],
        "bounds": {"b0": 0.7, "b1": 0.9},
        **config,
    }
    record = RunRecord.of(planned, found, config=config, started_unix_s=0.0)
    record.write(directory / f"rate{at:g}-seed{seed}.run.json")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for seed in (0, 1):
        write(tmp_path, 10.0, 0.0, seed)
        write(tmp_path, 20.0, 0.9 if seed else 0.0, seed)
        write(tmp_path, 40.0, 0.0, seed)
    return tmp_path


def test_from_the_first_saturated_load_on_nothing_is_averaged(directory: Path) -> None:
    by_load = loads(read_points(directory))
    assert [(load.load, load.saturated) for load in by_load] == [
        (10.0, False),
        (20.0, True),
        (40.0, True),
    ]
    assert [load.means is None for load in by_load] == [False, True, True]
    means = by_load[0].means or {}
    assert means["ttft_p50_s"][0] == pytest.approx(0.1)
    assert means["ttft_p50_s"][1] == pytest.approx(0.0)
    assert means["goodput_share"][0] == 1.0


def test_a_load_says_why_its_own_saturated_run_was_and_not_what_another_seed_saw(
    tmp_path: Path,
) -> None:
    for seed in (0, 1):
        write(tmp_path, 20.0, 0.0 if seed else 0.9, seed)
        write(tmp_path, 40.0, 0.0, seed)
    low, high = loads(read_points(tmp_path))
    assert low.reason == low.points[0].saturation.reason != low.points[1].saturation.reason
    assert _line(low) == f"20 requests/s: saturated ({low.points[0].saturation.reason})"
    assert high.reason == "a lower load was saturated"


def test_a_load_whose_runs_are_too_short_is_not_told_and_not_below_saturation(
    tmp_path: Path,
) -> None:
    pytest.importorskip("matplotlib")
    for at, warm_up in ((10.0, 10), (20.0, 98)):
        for seed in (0, 1):
            write(tmp_path, at, 0.0, seed, warm_up_requests=warm_up)
    points = read_points(tmp_path)
    assert [(load.saturated, load.told) for load in loads(points)] == [
        (False, True),
        (False, False),
    ]
    result = to_json(points)
    assert result["highest_load_below_saturation"] == 10.0
    assert result["loads_not_told"] == [20.0]
    assert [load["saturated"] for load in result["loads"]] == [False, None]
    assert "saturation not told (too short to tell)" in _line(loads(points)[1])
    text = write_report(points, tmp_path).read_text()
    assert "Not told, as the runs are too short: 20.0 requests/s." in text
    assert text.count("20 (not told)") == 2
    with (tmp_path / "points.csv").open(newline="") as file:
        assert [r["saturated"] for r in csv.DictReader(file)] == ["False", "False", "", ""]
    for file_name in ("rate10-seed0.run.json", "rate10-seed1.run.json"):
        (tmp_path / file_name).unlink()
    page = write_report(read_points(tmp_path), tmp_path).read_text()
    assert "Every load was saturated" not in page
    assert "Highest load below" not in page


def test_warm_up_counts_for_bounds_and_for_nothing_else(directory: Path) -> None:
    point = read_points(directory)[0]
    assert point.summary["requests"] == 90
    assert point.summary["hit_rate"] == pytest.approx(0.6)
    assert point.hit_rate_from_start == pytest.approx(0.56)


def test_another_slo_can_be_asked_afterwards(directory: Path) -> None:
    point = read_points(directory, Slo(ttft_s=0.05))[0]
    assert point.summary["goodput"]["share"] == 0.0


def test_a_closed_loop_is_never_saturated(tmp_path: Path) -> None:
    write(tmp_path, 10.0, 0.9, 0, rate=None, concurrency=8)
    (load,) = loads(read_points(tmp_path))
    assert (load.load, load.label, load.saturated) == (8.0, "8 clients", False)
    assert load.points[0].summary["arrival_period_s"] is None
    assert load.points[0].summary["answered_in_arrival_period"] is None


def test_runs_that_cannot_stand_side_by_side_are_refused(directory: Path) -> None:
    write(directory, 5.0, 0.0, 0, rate=None, concurrency=8)
    with pytest.raises(Unequal, match="open and closed"):
        read_points(directory)
    other = RunRecord.of([], rows(5.0, 0.0), config={"rate": 5.0, "seed": 0}, started_unix_s=0.0)
    other.write(directory / "other.run.json")
    with pytest.raises(Unequal, match="different prompts"):
        read_points(directory)


class _Page(HTMLParser):
    """Tags and outgoing references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [
            v for k, v in attrs if k in ("src", "href", "xlink:href", "data") and v is not None
        ]


def test_the_report_is_json_csv_and_a_page_that_needs_nothing_else(directory: Path) -> None:
    pytest.importorskip("matplotlib")
    page_path = write_report(read_points(directory), directory)
    text = page_path.read_text()
    page = _Page()
    page.feed(text)
    assert page.tags.count("svg") == 7
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert all(r.startswith("#") for r in page.references)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "&lt;script&gt;" in text
    assert text.count('class="past"') == 4
    assert "at 10 requests/s, seed 0: the first seed of the highest load that is not past" in text
    who = [line for line in text.splitlines() if "replica r0" in line]
    assert len(who) == 6
    assert "<td>45 of 45</td>" in who[0]
    assert (
        who[0].count("<td>70.0</td>") == 1
    )  # the queue wait of the server's report, in milliseconds
    assert text.count("<td>70.0</td>") == 6 * 4  # of the run, of each replica and of the lane

    summary = json.loads((directory / "summary.json").read_text())
    assert summary["highest_load_below_saturation"] == 10.0
    assert summary["loads"][1]["means"] is None
    assert len(summary["points"]) == 6
    with (directory / "points.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["saturated"] for line in lines] == ["False"] * 2 + ["True"] * 4
    assert float(lines[0]["queue_wait_mean_s"]) == pytest.approx(0.07)
    with (directory / "requests.csv").open(newline="") as file:
        requests = list(csv.DictReader(file))
    assert len(requests) == 600
    assert [float(t) for t in requests[0]["chunk_s"].split()] == pytest.approx([0.1, 0.11])
    assert [r["warm_up"] for r in requests[:11]] == ["True"] * 10 + ["False"]


def test_a_directory_without_runs_is_one_line_of_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert "no run files" in result.output


class TestMeasure:
    def invoke(self, peer: Any, out: Path, *args: object) -> Any:
        arguments = ["measure", "zipf_hotspot", "--texts", "made", "--out", out, "--requests", 12]
        arguments += ["--base-url", peer.url, *args]
        return CliRunner().invoke(main, [str(a) for a in arguments])

    def test_every_load_is_run_from_an_empty_cache_and_once(
        self, peer: Any, tmp_path: Path
    ) -> None:
        pytest.importorskip("matplotlib")
        result = self.invoke(peer, tmp_path, "--rate", 200, "--rate", 100, "--slo", "e2e=60")
        assert result.exit_code == 0, result.output
        assert peer.flushes == 2
        assert len(peer.bodies) == 24
        (first, second) = read_points(tmp_path)
        assert (first.rate, second.rate) == (100.0, 200.0)
        assert set(first.bounds) == {"b0", "b1"}
        assert first.summary["requests"] == 10
        again = self.invoke(peer, tmp_path, "--rate", 100, "--rate", 200, "--slo", "e2e=60")
        assert again.exit_code == 0, again.output
        assert len(peer.bodies) == 24
        other = self.invoke(peer, tmp_path, "--rate", 100, "--trace-seed", 1, "--slo", "e2e=60")
        assert other.exit_code == 1
        assert "asked something else" in other.output

    @pytest.mark.parametrize(
        ("option", "name"),
        [
            (("--base-url", "http://127.0.0.1:9"), "base_url"),
            (("--no-flush",), "flush"),
            (("--warm-up", 0.5), "warm_up"),
            (("--slo", "e2e=1"), "slo"),
            (("--arrivals", "constant"), "arrivals"),
            (("--timeout-s", 5), "timeout_s"),
            (("--pool-tokens", 5000), "pool_tokens"),
        ],
    )
    def test_a_directory_takes_no_runs_that_were_told_otherwise_at_any_load(
        self, peer: Any, tmp_path: Path, option: tuple[object, ...], name: str
    ) -> None:
        pytest.importorskip("matplotlib")
        write(tmp_path, 5.0, 0.0, 0, **{**self.TOLD, "base_url": peer.url})
        result = self.invoke(peer, tmp_path, "--rate", 200, *option)
        assert result.exit_code == 1
        assert f"was told another {name}: choose another directory" in result.output
        assert ("report --slo" in result.output) is (name == "slo")
        assert (peer.flushes, peer.bodies) == (0, [])

    TOLD: ClassVar[dict[str, Any]] = {
        "flush": True,
        "warm_up": 0.2,
        "slo": None,
        "arrivals": "poisson",
        "timeout_s": 600.0,
        "pool_tokens": None,
    }

    def test_a_mixed_directory_has_no_report(self, tmp_path: Path) -> None:
        write(tmp_path, 5.0, 0.0, 0, warm_up=0.2)
        write(tmp_path, 10.0, 0.0, 0, warm_up=0.5, slo=Slo(ttft_s=9.0).to_json())
        with pytest.raises(Unequal, match="differ in their warm_up, slo"):
            read_points(tmp_path)
        write(tmp_path, 10.0, 0.0, 0, warm_up=0.2, slo=Slo(ttft_s=9.0).to_json())
        with pytest.raises(Unequal, match="differ in their slo"):
            read_points(tmp_path)
        assert len(read_points(tmp_path, Slo(ttft_s=1.0))) == 2

    def test_clients_instead_of_rates(self, peer: Any, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        result = self.invoke(
            peer, tmp_path, "--concurrency", 3, "--no-flush", "--pool-tokens", 9000
        )
        assert result.exit_code == 0, result.output
        (point,) = read_points(tmp_path)
        assert (point.load, peer.flushes) == (3.0, 0)
        assert 0 <= (point.bounds["b4"] or 0.0) <= (point.bounds["b1"] or 0.0)

    def test_a_late_generator_is_said_at_once_and_on_the_page(
        self, peer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("matplotlib")
        monkeypatch.setattr("loadgen.metrics.LATE_P99_S", -1.0)
        result = self.invoke(peer, tmp_path, "--rate", 200)
        assert "warning: the generator was late with 1 process" in result.output
        assert "the generator was late with 1 process" in (tmp_path / "report.html").read_text()

    def test_a_load_has_to_be_said(self, peer: Any, tmp_path: Path) -> None:
        assert self.invoke(peer, tmp_path).exit_code == 2
        assert self.invoke(peer, tmp_path, "--rate", 1, "--concurrency", 1).exit_code == 2
