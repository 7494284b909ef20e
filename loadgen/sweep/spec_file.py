"""Comparisons of placements written down in a file: which traces, replicas, loads, seeds and arms.

Reads and checks the file, and says which runs it asks for; runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from loadgen.simulate import BadSpec, SimSpec, kept_knee
from loadgen.sweep.arms import Arm, parse_arm
from loadgen.sweep.steps import Step, steps

_KEYS = ("profile", "requests_per_replica", "seeds", "arms", "baseline", "loads", "runs")
_RUN_KEYS = ("trace", "replicas", "loads", "seeds", "arms", "knee", "set", "requests_per_replica")


@dataclass(frozen=True)
class Comparison:
    """One trace on so many replicas: all ``todo`` are to be compared with the arm ``baseline``."""

    name: str
    base: SimSpec
    baseline: str
    todo: tuple[Step, ...]


def read_comparisons(file: Path) -> list[Comparison]:
    """The comparisons of a YAML file, in its order. Raises BadSpec naming what is wrong, UnknownKnee.

    ``arms`` maps names to ``POLICY[/RETENTION] [KEY=VALUE ...]``; a run may choose some of them by
    name, and has ``loads`` (shares of the kept knee, or of its own ``knee``), ``seeds``,
    ``requests_per_replica`` and ``set`` (options of a simulation) of its own where it names them.
    """
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not isinstance(data.get("runs"), list):
        raise BadSpec(f"{file}: expected a mapping with a list of runs")
    _refuse_unknown(str(file), data, _KEYS)
    return [_comparison(file, data, run) for run in data["runs"]]


def _comparison(file: Path, data: Mapping[str, Any], run: Mapping[str, Any]) -> Comparison:
    where = f"{file}: run {run.get('trace')!r}"
    _refuse_unknown(where, run, _RUN_KEYS)
    given = {**data, **run}
    missing = [key for key in ("trace", "loads", "seeds", "baseline") if not given.get(key)]
    if missing:
        raise BadSpec(f"{where}: needs {', '.join(missing)}")
    replicas = int(given.get("replicas", 1))
    base = SimSpec(
        trace=given["trace"],
        replicas=replicas,
        requests=replicas * int(given.get("requests_per_replica", 1000)),
        profile=given.get("profile", SimSpec.profile),
    ).with_options(given.get("set", {}))
    knee = given.get("knee") or kept_knee(base.trace, base.profile, replicas, base.trace_options)
    todo = steps(
        base, list(_arms(where, data, run)), given["seeds"], knee_qps=knee, loads=given["loads"]
    )
    options = "".join(f",{key}={value}" for key, value in sorted(base.trace_options.items()))
    return Comparison(f"{base.trace}{options}-x{replicas}", base, given["baseline"], tuple(todo))


def _arms(where: str, data: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[Arm]:
    known: Mapping[str, str] = data.get("arms") or {}
    for name in run.get("arms", known):
        if name not in known:
            raise BadSpec(f"{where}: no arm {name!r}; known: {', '.join(known)}")
        yield replace(parse_arm(known[name]), name=name)


def _refuse_unknown(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise BadSpec(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(known)}")
