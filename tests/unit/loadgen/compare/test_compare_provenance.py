"""What a run says of its machine and versions, and what a page says where runs differ in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.compare import provenance
from loadgen.compare.provenance import differences, made_on


def run(seed: int, **made: Any) -> dict[str, Any]:
    return {"seed": seed, "made_on": {"cpu": "A", "boot": "1", "sglang": "0.5.23"} | made}


def test_a_run_says_processor_boot_versions_and_what_its_engine_was_told() -> None:
    told = made_on({"context_length": 4096})
    assert told["cores"] > 0
    assert len(told["boot"]) == 12
    assert (told["context_length"], told["dtype"]) == (4096, "auto")
    assert made_on({"dtype": "float32"})["dtype"] == "float32"
    assert {"cpu", "gpus", "sglang", "torch", "prism-ray"} <= set(told)


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert provenance._version("no-such-package-at-all") is None


def test_gpus_are_named_by_the_driver(tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / f"{number}").mkdir()
        text = f"Model: \t\t NVIDIA A800\nIRQ:   {number}\n"
        (tmp_path / f"{number}" / "information").write_text(text)
    assert provenance._gpus(tmp_path) == ["NVIDIA A800"] * 2
    assert provenance._gpus(tmp_path / "nowhere") == []
    assert provenance._cpu("processor: 0\nmodel name\t: EPYC\nmodel name: EPYC\n") == "EPYC"


def test_like_runs_differ_in_nothing_and_older_runs_say_nothing() -> None:
    assert differences([run(0), run(1)]) == []
    assert differences([{"seed": 0}, run(1)]) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("boot", "machine, or in its boot: 1 (seeds 0, 1); X (seeds 1, 2)"),
        ("cpu", "processor: A (seeds 0, 1); X (seeds 1, 2)"),
        ("sglang", "sglang: 0.5.23 (seeds 0, 1); X (seeds 1, 2)"),
    ],
)
def test_unlike_runs_are_named_with_their_seeds(name: str, says: str) -> None:
    runs = [run(0), run(1), run(1, **{name: "X"}), run(2, **{name: "X"})]
    assert differences(runs) == [says]
