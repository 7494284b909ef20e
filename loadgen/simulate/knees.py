"""Our knees: the rates at which the best peer is about to fall behind, kept in a file beside this one.

A knee belongs to a trace with its default options, a profile and a number of replicas. The sweep
finds knees (``prism-loadgen sweep knee --keep``); a run without ``--qps`` goes at 0.9 of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KNEES_FILE = Path(__file__).with_name("knees.json")
DEFAULT_LOAD = 0.9
"""Share of the knee at which a run without a rate of its own goes."""


class UnknownKnee(ValueError):
    """No knee is kept for that combination; the message says how to go on."""


def kept_knee(
    trace: str,
    profile: str,
    replicas: int,
    options: Mapping[str, Any] | None = None,
    file: Path = KNEES_FILE,
) -> float:
    """The knee in requests/s. Raises UnknownKnee, also for a trace with ``options`` of its own."""
    knee = _read(file).get(_key(trace, profile, replicas, options or {}))
    if knee is None:
        raise UnknownKnee(
            f"no knee is kept for {_key(trace, profile, replicas, options or {})}: give a rate "
            "(--qps), or find it with `prism-loadgen sweep knee --keep`"
        )
    return float(knee["qps"])


def keep_knee(
    trace: str,
    profile: str,
    replicas: int,
    knee: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    file: Path = KNEES_FILE,
) -> None:
    """Write a knee (``qps`` and how it was found) into the file, in place of an older one."""
    knees = _read(file)
    knees[_key(trace, profile, replicas, options or {})] = dict(knee)
    text = json.dumps(dict(sorted(knees.items())), indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def _key(trace: str, profile: str, replicas: int, options: Mapping[str, Any]) -> str:
    chosen = "".join(f",{name}={options[name]}" for name in sorted(options))
    return f"{trace}{chosen} {profile} x{replicas}"


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
