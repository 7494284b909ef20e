"""Claims as data: what a paper (or our own target) says, and which figures of which runs answer it.

Computes nothing; ``claims.yaml`` beside this file holds them with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from loadgen.reproduce.settings import SETTINGS

CLAIMS_FILE = Path(__file__).with_name("claims.yaml")
KINDS = ("level", "change", "difference")
RELATIONS = ("about", "at_most", "at_least")
SOURCES = ("prism", "preble", "ours")


class BadClaim(ValueError):
    """A claim that cannot be computed; the message names it."""


@dataclass(frozen=True)
class Reading:
    """Where a claim is looked for: a setting, and rates in requests/s or as shares of its knee.

    ``arm`` replaces the claim's arm; ``other_setting`` is where the other side is served.
    """

    name: str
    setting: str
    rates: tuple[float, ...] = ()
    loads: tuple[float, ...] = ()
    arm: str | None = None
    other_setting: str | None = None

    def qps(self) -> tuple[float, ...]:
        """Raises UnknownKnee."""
        if not self.loads:
            return self.rates
        knee = SETTINGS[self.setting].knee_qps()
        return (*self.rates, *(load * knee for load in self.loads))


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        id: short and unique.
        source: "prism", "preble" (papers), or "ours": a target of our own.
        where: section, table or figure that says it.
        says: the claim in words.
        kind: "level" of a metric, relative "change" against the best of ``against``, or the
            "difference" (for shares).
        metrics: dotted paths into a run's JSON; several: each must hold.
        number, relation, tolerance: what is claimed of it; the tolerance is on both sides of "about".
        arm, against: whose figure, and compared with whom. The best of ``against`` is picked at each
            rate, by its mean over seeds of ``best_by`` (by default the metric itself).
        scale: what the other side is multiplied with before it is subtracted.
        each: must hold at each rate; otherwise in the mean over rates.
        certain: the whole interval must hold, not the mean.
        bound_ratio: where it falls short, it counts as met if the arm's P99 is at most so many times
            the least that any policy could have.
        unit: "%", "points", "s" or "/s", for people.
        note: about how it is set up, never about what came out.
    """

    id: str
    source: str
    where: str
    says: str
    kind: str
    metrics: tuple[str, ...]
    number: float
    relation: str
    arm: str
    readings: tuple[Reading, ...]
    against: tuple[str, ...] = ()
    best_by: str | None = None
    scale: float = 1.0
    tolerance: float = 0.0
    each: bool = False
    certain: bool = False
    bound_ratio: float | None = None
    unit: str = "%"
    note: str = ""
    topic: str = field(default="")

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.relation not in RELATIONS or self.source not in SOURCES:
            raise BadClaim(f"{self.id}: unknown kind, relation or source")
        if (self.kind == "level") == bool(self.against):
            raise BadClaim(f"{self.id}: a level has nobody to compare with, all others have")
        if not self.readings or not self.metrics:
            raise BadClaim(f"{self.id}: needs readings and metrics")
        for reading in self.readings:
            for setting in (reading.setting, reading.other_setting):
                if setting is not None and setting not in SETTINGS:
                    raise BadClaim(f"{self.id}: there is no setting {setting!r}")

    def arm_of(self, reading: Reading) -> str:
        return reading.arm or self.arm


def load_claims(file: Path = CLAIMS_FILE) -> tuple[Claim, ...]:
    """All claims of a file, in its order. Raises BadClaim."""
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    claims = []
    for topic in data["topics"]:
        for entry in topic["claims"]:
            shared = {"topic": topic["topic"], **topic.get("all", {})}
            claims.append(_claim({**shared, **entry}, data["readings"]))
    names = [claim.id for claim in claims]
    if len(set(names)) < len(names):
        raise BadClaim("two claims have the same id")
    return tuple(claims)


def _claim(entry: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> Claim:
    name = entry.get("id", "?")
    values = dict(entry)
    try:
        values["metrics"] = _tuple(values.get("metrics", ()))
        values["against"] = _tuple(values.get("against", ()))
        values["readings"] = tuple(_reading(r, known) for r in _tuple(values.get("readings", ())))
        unknown = set(values) - {f.name for f in fields(Claim)}
        if unknown:
            raise BadClaim(f"{name}: unknown {', '.join(sorted(unknown))}")
        return Claim(**values)
    except (KeyError, TypeError) as error:
        raise BadClaim(f"{name}: {error}") from None


def _reading(name: str, known: Mapping[str, Mapping[str, Any]]) -> Reading:
    given = dict(known[name])
    for key in ("rates", "loads"):
        given[key] = tuple(float(x) for x in given.get(key, ()))
    return Reading(name, **given)


def _tuple(value: Any) -> tuple[Any, ...]:
    """One value, or a list of values and lists (YAML's anchors nest)."""
    if not isinstance(value, list | tuple):
        return (value,)
    return tuple(inner for item in value for inner in _tuple(item))
