"""Our knees: the rates at which the best peer is about to fall behind, kept in a file beside this one.

A knee belongs to a trace with its default options, a profile and a number of replicas. The sweep
finds knees (``prism-loadgen sweep knee --keep``); a run without ``--qps`` goes at 0.9 of one, or of the
nearest one in replicas, scaled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

KNEES_FILE = Path(__file__).with_name("knees.json")
DEFAULT_LOAD = 0.9
"""Share of the knee at which a run without a rate of its own goes."""


_NONE_KEPT = (
    "no knee is kept for {}: give a rate (--qps), or find it with `prism-loadgen sweep knee --keep`"
)


class Knee(NamedTuple):
    """Requests/s, and in words where they come from."""

    qps: float
    source: str


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
    key = _key(trace, profile, replicas, options or {})
    knee = _read(file).get(key)
    if knee is None:
        raise UnknownKnee(_NONE_KEPT.format(key))
    return float(knee["qps"])


def nearest_knee(
    trace: str,
    profile: str,
    replicas: int,
    options: Mapping[str, Any] | None = None,
    file: Path = KNEES_FILE,
) -> Knee:
    """The kept knee, else that of the nearest number of replicas (of equals the smaller), scaled by it.

    Scaled, it is what as many equal shares of the load would have: an estimate, and the same for every
    policy. Raises UnknownKnee where the trace with these options has none on this profile at all.
    """
    asked = _key(trace, profile, replicas, options or {})
    setting = asked.rpartition("x")[0]
    known = {
        int(key.rpartition("x")[2]): float(knee["qps"])
        for key, knee in _read(file).items()
        if key.rpartition("x")[0] == setting
    }
    if not known:
        raise UnknownKnee(_NONE_KEPT.format(asked))
    nearest = min(known, key=lambda count: (abs(count - replicas), count))
    if nearest == replicas:
        return Knee(known[nearest], "kept")
    scaled = known[nearest] * replicas / nearest
    return Knee(scaled, f"scaled from {nearest} replica{'s' if nearest > 1 else ''}")


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
