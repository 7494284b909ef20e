"""Cost profiles: what one kind of replica costs and holds, as JSON files; nothing is modelled here.

The shipped ones lie in ``prism_ray/data/profiles``; a path names a file of the same form, as
``prism-loadgen profile`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams


class BadProfile(ValueError):
    """No such profile, or a file that is none; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A replica in virtual time: step costs in seconds, engine limits in tokens and requests.

    ``engine`` overrides fields of StepParams. ``source`` says where the figures are from, and whether
    they were measured.
    """

    name: str
    cost: CostModel
    engine: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        known = {f.name for f in fields(StepParams)}
        unknown = sorted(set(self.engine) - known)
        if unknown:
            raise BadProfile(f"profile {self.name}: unknown engine limits {', '.join(unknown)}")

    def params(self, **overrides: Any) -> StepParams:
        """The engine's limits, with ``overrides`` over the profile's own. Raises ValueError."""
        return StepParams(**{**self.engine, **overrides})

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "cost": asdict(self.cost),
            "engine": dict(self.engine),
        }

    @classmethod
    def from_json(cls, data: Any) -> Profile:
        """Read what ``to_json`` gives. Raises BadProfile."""
        if not isinstance(data, dict) or set(data) - {f.name for f in fields(cls)}:
            raise BadProfile("a profile is an object with name, source, cost and engine")
        try:
            cost = CostModel(**data["cost"])
            return cls(data["name"], cost, data.get("engine", {}), data.get("source", ""))
        except (KeyError, TypeError, ValueError) as error:
            raise BadProfile(f"profile {data.get('name', '')!r}: {error}") from None


def shipped_profiles() -> dict[str, Path]:
    """The profiles that come with the package, by name."""
    root = Path(str(resources.files("prism_ray"))) / "data" / "profiles"
    return {path.stem: path for path in sorted(root.glob("*.json"))}


def load_profile(source: str | Path) -> Profile:
    """A profile by its shipped name or the path of a file. Raises BadProfile."""
    known = shipped_profiles()
    path = known.get(str(source), Path(source))
    if not path.is_file():
        raise BadProfile(f"unknown profile {str(source)!r}; known: {', '.join(known)}, or a file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadProfile(f"{path} is no readable JSON file: {error}") from None
    return Profile.from_json(data)
