"""`prism-loadgen trace` makes files, describes traces and files, and fails in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadgen.cli import main
from loadgen.traces.files import read_trace


def call(*args: str) -> Result:
    return CliRunner().invoke(main, ["trace", *args])


def test_what_is_made_can_be_described_and_says_the_same(tmp_path: Path) -> None:
    out, made_json, file_json = (str(tmp_path / n) for n in ("t.jsonl", "a.json", "b.json"))
    options = ("--count", "50", "--seed", "3", "-o", "reading=c", "-o", "system-tokens=294")
    made = call("make", "zipf_hotspot", "--out", out, *options)
    assert made.exit_code == 0, made.output
    assert "note: reading c" in made.output
    assert call("describe", "zipf_hotspot", *options, "--json", made_json).exit_code == 0
    described = call("describe", out, "--json", file_json)
    assert "prefix_repeated" in described.output
    one, other = (json.loads(Path(p).read_text()) for p in (made_json, file_json))
    assert one == other
    assert one["options"]["system_tokens"] == 294


def test_times_can_be_written_into_the_file(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    result = call(
        *("make", "loogle", "--out", str(out), "--count", "4", "--arrivals", "constant"),
        *("--rate", "2"),
    )
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["timestamp"] for line in out.read_text().splitlines()] == [
        0,
        500,
        1000,
        1500,
    ]
    assert read_trace(out).arrivals("trace", rate=1.0) == [0.0, 1.0, 2.0, 3.0]


def test_plots_are_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = call("describe", "zipf_hotspot", "--count", "40", "--plots", str(tmp_path / "plots"))
    assert result.exit_code == 0, result.output
    pictures = sorted((tmp_path / "plots").iterdir())
    assert [p.name for p in pictures] == [
        "zipf_hotspot-lengths.png",
        "zipf_hotspot-sharing.png",
        "zipf_hotspot-skew.png",
    ]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in pictures)


def test_every_trace_is_listed_with_its_options() -> None:
    result = call("list")
    assert result.exit_code == 0
    assert "zipf_hotspot: The paper's trace" in result.output
    assert "    hot_rate=0.7" in result.output
    assert "mooncake: " in result.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("describe", "nope"), "unknown trace 'nope'; known:"),
        (("describe", "zipf_hotspot", "-o", "x=1"), "has no option x"),
        (("describe", "zipf_hotspot", "-o", "x"), "name=value"),
        (("describe", "zipf_hotspot", "-o", "reading=z"), "no reading 'z'"),
        (("make", "loogle", "--out", "{tmp}/t", "--rate", "1"), "--rate needs --arrivals"),
        (("make", "loogle", "--out", "{tmp}/t", "--arrivals", "poisson"), "need a rate"),
        (("make", "loogle", "--out", "{tmp}/t", "--arrivals", "trace"), "no times of its own"),
    ],
)
def test_what_cannot_be_done_is_said(args, message: str, tmp_path: Path) -> None:
    result = call(*(a.replace("{tmp}", str(tmp_path)) for a in args))
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
