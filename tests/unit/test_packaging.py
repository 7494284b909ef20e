"""What the repository ships: config copies, metadata, house files, entry points."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from prism_ray.config import PrismConfig, presets
from prism_ray.engine_args import shipped_model_config

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", sorted(presets()))
def test_the_public_copy_of_a_preset_is_the_packaged_file(name):
    public = ROOT / "configs" / f"{name}.yaml"
    assert public.read_bytes() == presets()[name].read_bytes()
    assert public.is_symlink(), "a copy kept by hand would drift"


def test_every_preset_has_a_public_copy_and_no_public_preset_is_unpackaged():
    links = {p.stem for p in (ROOT / "configs").glob("*.yaml") if p.is_symlink()}
    assert links == set(presets())


@pytest.mark.parametrize("script", sorted(PROJECT["scripts"]))
def test_every_console_script_exists(script):
    module, _, attribute = PROJECT["scripts"][script].partition(":")
    assert callable(getattr(import_module(module), attribute))


def test_the_license_is_the_whole_apache_license():
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_base_install_names_neither_torch_nor_sglang():
    names = " ".join(PROJECT["dependencies"])
    assert "torch" not in names
    assert "sglang" not in names


def test_sglang_and_ray_are_pinned_since_our_hooks_are_tied_to_them():
    pins = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["sglang"]]
    assert any(p.startswith("ray[serve]==") for p in pins)
    assert any(p.startswith("sglang==") for p in pins)


def test_the_changelog_has_the_current_version():
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_published_dimensions_of_the_a800_models_ship_beside_the_presets():
    for name in ("a800-qwen3-4b", "a800-llama2-13b"):
        path = PrismConfig.load(name).model.path
        assert path is not None
        assert shipped_model_config(path) is not None
