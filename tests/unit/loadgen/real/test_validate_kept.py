"""A validation in pieces: what is kept of an arm comes back as it was, or not at all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.validate import command
from loadgen.validate.agreement import ReplayedRow, simulated_row
from loadgen.validate.kept import Compared, KeptArms, OtherValidation

TOLD = {"requests": 240, "seeds": [0, 1, 2]}


def compared(policy: str, retention: str = "lru", hit_rate: float = 0.3) -> Compared:
    row = ReplayedRow(
        policy=policy,
        retention=retention,
        seed=0,
        requests=100,
        equal=99,
        equal_share=0.99,
        hit_rate=hit_rate,
        replayed_hit_rate=hit_rate,
        evicted_pools=2.5,
        replayed_evicted_pools=2.5,
        prefill_batches=20,
        crowded_batches=15,
        chunked=3,
        aborted=2,
        retracted=0,
        decode_steps=9,
        steps=29,
        same_size_steps=29,
        unequal=(("v0-7", 24, 48),),
    )
    rates = [(hit_rate, hit_rate + 0.001)] * 3
    return Compared((row,), simulated_row((policy, retention), rates), {"explained": 0.9})


def test_a_kept_arm_comes_back_as_it_was(tmp_path: Path) -> None:
    kept = KeptArms(tmp_path / "new", TOLD)
    assert kept.get(("k-lpm", "dart")) is None
    kept.put(compared("k-lpm", "dart"))
    assert KeptArms(tmp_path / "new", TOLD).get(("k-lpm", "dart")) == compared("k-lpm", "dart")
    assert kept.get(("k-lpm", "lru")) is None


def test_an_arm_that_was_told_something_else_is_refused(tmp_path: Path) -> None:
    KeptArms(tmp_path, TOLD).put(compared("fcfs"))
    with pytest.raises(OtherValidation, match="another requests, seeds"):
        KeptArms(tmp_path, {"requests": 160, "seeds": [0]}).get(("fcfs", "lru"))


def test_what_is_only_noted_may_differ(tmp_path: Path) -> None:
    KeptArms(tmp_path, TOLD, {"git_commit": "one"}).put(compared("fcfs"))
    assert KeptArms(tmp_path, TOLD, {"git_commit": "two"}).get(("fcfs", "lru")) is not None


class Engines:
    """Stands for the real engines: says which arms were run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: str = "") -> None:
        self.ran: list[tuple[str, str]] = []
        self.fails_at = fails_at
        monkeypatch.setattr(command, "_record_engine", self.record)
        monkeypatch.setattr(command, "random_model", lambda shape: Path(shape))
        monkeypatch.setattr(command, "compare", lambda recorded, requests: recorded)

    async def record(
        self, model: Path, retention: str, policies: Any, seeds: Any, requests: int, told: Any
    ) -> None:
        for policy in policies:
            await asyncio.sleep(0)
            if policy == self.fails_at:
                raise RuntimeError("the machine went away")
            self.ran.append((policy, retention))
            told(compared(policy, retention))


def run(directory: Path, *more: str) -> Any:
    arguments = ["--dir", str(directory), "--json", str(directory / "report"), *more]
    return CliRunner().invoke(command.validate, arguments)


def test_a_stopped_validation_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Engines(monkeypatch, fails_at="k-lpm")
    assert isinstance(run(tmp_path).exception, RuntimeError)
    assert stopped.ran == [("fcfs", "lru"), ("lpm", "lru")]

    taken_up = Engines(monkeypatch)
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert not set(taken_up.ran) & set(stopped.ran)
    assert len(taken_up.ran) + len(stopped.ran) == 8
    report = json.loads((tmp_path / "report").read_text())
    assert len(report["replayed"]) == len(report["simulated"]) == len(report["fits"]) == 8

    nothing_left = Engines(monkeypatch)
    assert run(tmp_path).exit_code == 0
    assert nothing_left.ran == []
    assert json.loads((tmp_path / "report").read_text())["replayed"] == report["replayed"]


def test_a_directory_of_another_validation_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engines(monkeypatch)
    assert run(tmp_path).exit_code == 0
    result = run(tmp_path, "--requests", "50")
    assert result.exit_code == 2
    assert "another requests" in result.output
