"""Profiles of real engines: what is sent to measure them, and the file that comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.real.fit import Fit, Residuals, Step
from loadgen.real.profile import (
    Measured,
    as_profile,
    calibration_groups,
    profile,
    write_steps,
)
from prism_ray.engine.base import EngineInfo
from prism_ray.engine.cost import CostModel
from prism_ray.engine.profile import load_profile

INFO = EngineInfo("/models/random-19m", 6000, 4096, 8, 1024, 16384, 1)


def test_calibration_prompts_share_nothing_and_a_group_fits_half_the_pool() -> None:
    groups = calibration_groups(INFO, output_tokens=16)
    arrivals = [arrival for group in groups for arrival in group]
    assert len({a.ticket.request_id for a in arrivals}) == len(arrivals)
    for group in groups:
        assert not any(a.ticket.skeleton.segments for a in group)
        assert len({a.ticket.skeleton.prompt_tokens for a in group}) == 1
        assert sum(a.ticket.skeleton.prompt_tokens + 16 for a in group) <= INFO.pool_tokens / 2
    assert max(map(len, groups)) == INFO.max_running
    assert {20, 1024} <= {a.ticket.skeleton.prompt_tokens for a in arrivals}
    assert len(groups) == 3 * len(calibration_groups(INFO, output_tokens=16, rounds=1))


def test_the_file_is_what_simulate_reads(tmp_path: Path) -> None:
    measured = Measured(INFO, Fit(CostModel(0.01, 3e-4, 1e-3, 2e-6), 500, 0.9, -0.01))
    made = as_profile("mine", "cpu", measured)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(made.to_json()))
    read = load_profile(path)
    assert read == made
    assert read.params(retention="lru").pool_tokens == 6000
    assert "R² 0.900" in read.source


def test_the_source_says_how_far_off_unseen_steps_are_and_the_steps_can_be_kept(
    tmp_path: Path,
) -> None:
    fit = Fit(CostModel(0.01), 500, 0.9, -0.01)
    steps = (Step(True, 7, 0, 0, 0.25), Step(False, 0, 2, 30, 0.125))
    measured = Measured(INFO, fit, {"decode": Residuals(40, 0.051, 0.202, -0.013)}, steps)
    source = as_profile("mine", "cpu", measured).source
    assert (
        "40 decode steps that the fit had not seen: off by 5.1% (median) and 20.2% (P90)" in source
    )
    assert source.endswith("their sum by -1.3%.")
    write_steps(tmp_path / "steps.csv", steps)
    assert (tmp_path / "steps.csv").read_text() == (
        "prefill,new_tokens,decode_requests,context_tokens,seconds\n1,7,0,0,0.25\n0,0,2,30,0.125\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m", "--out", "o"], "needs its pool's size"),
        (["--model", "m", "--out", "o", "--pool", "9", "--server-arg", "x"], "is not name=value"),
    ],
)
def test_what_is_missing_is_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(profile, arguments)
    assert result.exit_code == 2
    assert message in result.output
