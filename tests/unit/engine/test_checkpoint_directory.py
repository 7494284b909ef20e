"""Model directories appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from prism_ray.engine.checkpoints.directory import (
    MODELS_DIR_VARIABLE,
    CheckpointUnavailable,
    appearing,
    is_checkpoint,
    models_dir,
)
from prism_ray.engine.checkpoints.random_llama import LlamaShape, shapes
from prism_ray.engine.checkpoints.smollm2 import fetch_model, fetch_smollm2, smollm2_dir


def fill(path: Path, mark: str = "") -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (path / name).write_text(mark)


def test_the_models_directory_comes_from_the_environment_or_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(MODELS_DIR_VARIABLE, str(tmp_path))
    assert smollm2_dir() == tmp_path / "SmolLM2-135M-Instruct"
    monkeypatch.delenv(MODELS_DIR_VARIABLE)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert models_dir() == Path("/home/somebody/.cache/prism_ray/models")


def test_a_model_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "model"
    with appearing(out) as scratch:
        fill(scratch)
        assert not out.exists()
    assert is_checkpoint(out)
    assert list(out.parent.iterdir()) == [out]


def test_every_user_can_read_a_model(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with appearing(out) as scratch:
        fill(scratch)
        (scratch / "model.safetensors").chmod(0o600)
    assert out.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in out.iterdir()} == {0o644}


def test_a_model_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing() -> None:
        with appearing(tmp_path / "model") as scratch:
            fill(scratch)
            raise OSError("disk full")

    with pytest.raises(OSError, match="full"):
        failing()
    assert list(tmp_path.iterdir()) == []


def test_another_process_that_finished_first_keeps_its_model(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with appearing(out) as mine:
        with appearing(out) as theirs:
            fill(theirs, "theirs")
        fill(mine, "mine")
    assert (out / "config.json").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [out]


def test_a_directory_of_something_else_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CheckpointUnavailable, match="not a model directory"), appearing(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.tex"]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_without_one_of_its_parts_is_none(tmp_path: Path, missing: str) -> None:
    fill(tmp_path)
    assert is_checkpoint(tmp_path)
    (tmp_path / missing).unlink()
    assert not is_checkpoint(tmp_path)


def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    fill(tmp_path, "untouched")
    said: list[str] = []
    assert fetch_smollm2(tmp_path, said.append) == tmp_path
    assert said == [f"SmolLM2-135M-Instruct is already in {tmp_path}"]
    assert (tmp_path / "config.json").read_text() == "untouched"


def test_the_command_names_where_the_model_is(tmp_path: Path) -> None:
    fill(tmp_path)
    result = CliRunner().invoke(fetch_model, ["smollm2", "--out", str(tmp_path)])
    assert (result.exit_code, str(tmp_path) in result.output) == (0, True)


@pytest.mark.parametrize(
    ("hidden", "heads", "kv_heads"), [(64, 3, 3), (60, 4, 2), (64, 4, 3)], ids=str
)
def test_shapes_that_cannot_be_attended_over_are_refused(
    hidden: int, heads: int, kv_heads: int
) -> None:
    with pytest.raises(ValueError, match="heads"):
        LlamaShape(layers=1, hidden=hidden, heads=heads, kv_heads=kv_heads, mlp=64)


def test_the_shapes_have_the_names_the_configs_use() -> None:
    assert list(shapes) == ["19m", "tiny"]
