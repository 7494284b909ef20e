"""Importing prism_ray stays light, and the pure rooms stay pure."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import prism_ray

HEAVY = ("ray", "torch", "sglang", "redis", "fastapi", "transformers")
LIGHT = (
    "prism_ray",
    "prism_ray.config",
    "prism_ray.cli",
    "prism_ray.engine_args",
    "prism_ray.engine_check",
    "prism_ray.model",
    "prism_ray.registry",
    "prism_ray.policies",
    "prism_ray.scheduling",
    "prism_ray.validate",
    "prism_ray.engine.base",
    "prism_ray.engine.step_model",
)
PURE_ROOMS = ("qas", "prism", "baselines", "dart", "placement", "dispatch", "scaling", "tenancy")


def pure_modules() -> list[str]:
    root = Path(prism_ray.__file__).parent
    rooms = [room for room in PURE_ROOMS if (root / room).is_dir()]
    inside = [
        module.name
        for room in rooms
        for module in pkgutil.walk_packages([str(root / room)], f"prism_ray.{room}.")
        if not module.name.startswith("prism_ray.dart.sglang_plugin_")  # SGLang imports these
    ]
    return [f"prism_ray.{room}" for room in rooms] + inside


def heavy_after_importing(modules: list[str]) -> dict[str, list[str]]:
    """For each module, which heavy packages are loaded once it and those before it are imported."""
    script = (
        "import importlib, json, sys\n"
        f"heavy = {HEAVY!r}\n"
        "seen = {}\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "    seen[name] = [h for h in heavy if h in sys.modules]\n"
        "print(json.dumps(seen))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    seen: dict[str, list[str]] = json.loads(result.stdout)
    return {name: found for name, found in seen.items() if found}


def test_importing_prism_ray_and_its_front_door_loads_nothing_heavy():
    assert heavy_after_importing(list(LIGHT)) == {}


def test_the_pure_rooms_load_nothing_heavy():
    assert heavy_after_importing(pure_modules()) == {}


def test_the_probe_would_see_a_heavy_import():
    assert heavy_after_importing(["redis"]) == {"redis": ["redis"]}


@pytest.mark.parametrize("module", ["time", "random"])
def test_no_pure_module_reads_a_clock_or_global_randomness(module):
    root = Path(prism_ray.__file__).parent
    users = [
        str(path.relative_to(root))
        for room in PURE_ROOMS
        for path in sorted((root / room).rglob("*.py"))
        if f"import {module}\n" in path.read_text() or f"from {module} import" in path.read_text()
    ]
    assert users == []
