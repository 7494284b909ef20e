"""Where configs and models lie: presets, files, the models directory. No schema lives here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from prism_ray.config_errors import ConfigError, Problem
from prism_ray.engine.checkpoints.directory import (
    MODELS_DIR_VARIABLE,
    is_checkpoint,
    models_dir,
)

MODELS_PREFIX = "models:"
"""A model path that starts so is a directory under ``models_dir()``."""


def presets() -> dict[str, Path]:
    """The configs that ship with the package, by name."""
    root = Path(str(resources.files("prism_ray"))) / "presets"
    return {path.stem: path for path in sorted(root.glob("*.yaml"))}


def default_preset(gpus: float) -> str:
    """The preset for a cluster with that many GPUs: the paper's setting, or the small CPU model."""
    return "a800-qwen3-4b" if gpus >= 1 else "cpu-smollm2"


def resolve(source: str | Path) -> Path:
    """The file behind a preset's name or a path; ConfigError, naming the presets, if none is."""
    known = presets()
    if str(source) in known:
        return known[str(source)]
    path = Path(source).expanduser()
    if not path.is_file():
        expected = f"a config file or one of the presets {', '.join(known)}"
        raise ConfigError([Problem("config", expected, str(source))])
    return path


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file; ConfigError if it cannot be read as one."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([Problem(str(path), "a readable YAML file", str(error))]) from None
    if not isinstance(data, dict):
        raise ConfigError([Problem(str(path), "a mapping at the top", data)])
    return data


def extended(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` laid over the preset that its ``extends`` names, if it names one."""
    rest = dict(data)
    base = rest.pop("extends", None)
    if base is None:
        return rest
    known = presets()
    if base not in known:
        raise ConfigError([Problem("extends", f"one of the presets {', '.join(known)}", base)])
    return _merged(read_mapping(known[base]), rest)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    if "policy" in over and over["policy"] != base.get("policy"):
        result.pop("params", None)  # they are the other policy's
    for key, value in over.items():
        old = result.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(old, value) if nested else value  # type: ignore[arg-type]
    return result


def located(path: str, key: str) -> str:
    """``path`` with ``models:`` resolved; ConfigError at ``key`` if no model is there."""
    if not path.startswith(MODELS_PREFIX):
        return path
    directory = models_dir() / path.removeprefix(MODELS_PREFIX)
    if not is_checkpoint(directory):
        expected = (
            f"a model in {directory}; `prism-ray fetch-model smollm2` puts SmolLM2 there "
            f"(${MODELS_DIR_VARIABLE} moves the place)"
        )
        raise ConfigError([Problem(key, expected, path)])
    return str(directory)
