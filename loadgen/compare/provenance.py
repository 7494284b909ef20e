"""On what a run was made: the machine and the versions that its times depend on. Linux.

Runs of unequal prompts, arrivals or limits are refused (``tables``); runs of unlike machines or versions
may be wanted, and are only spoken of.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("sglang", "torch", "prism-ray")
_NAMES = {
    "cpu": "processor",
    "gpus": "GPUs",
    "cores": "number of cores",
    "boot": "machine, or in its boot",
    "context_length": "context length",
}
"""What a key is called after "they differ in"; others by themselves."""


def made_on(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """What goes into a run's JSON. ``boot`` is another one on every machine and after every start of it."""
    return {
        **_machine(),
        "context_length": engine_args.get("context_length"),
        "dtype": engine_args.get("dtype", "auto"),
    }


@cache
def _machine() -> dict[str, Any]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {
        "cpu": _cpu(Path("/proc/cpuinfo").read_text()),
        "gpus": _gpus(Path("/proc/driver/nvidia/gpus")),
        "cores": os.cpu_count(),
        "boot": hashlib.sha256(boot.encode()).hexdigest()[:12],
        **{name: _version(name) for name in PACKAGES},
    }


def _cpu(cpuinfo: str) -> str | None:
    names = [
        line.partition(":")[2].strip() for line in cpuinfo.splitlines() if "model name" in line
    ]
    return names[0] if names else None


def _gpus(directory: Path) -> list[str]:
    lines = [line for file in sorted(directory.glob("*/information")) for line in _lines(file)]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().splitlines()
    return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def differences(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """In what the machines or versions of runs differ, a phrase each: who says what, by seed."""
    told = [(r["seed"], r["made_on"]) for r in results if "made_on" in r]
    found = []
    for name in dict.fromkeys(name for _, made in told for name in made):
        seeds: dict[str, set[int]] = {}
        for seed, made in told:
            seeds.setdefault(str(made.get(name)), set()).add(seed)
        if len(seeds) > 1:
            values = "; ".join(
                f"{value} (seeds {', '.join(map(str, sorted(of)))})" for value, of in seeds.items()
            )
            found.append(f"{_NAMES.get(name, name)}: {values}")
    return found
