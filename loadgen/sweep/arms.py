"""Arms of a comparison: a policy with its retention and options under one name. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadgen.simulate import BadSpec, SimSpec, parse_settings


@dataclass(frozen=True)
class Arm:
    """What one arm changes of the spec that all arms share. ``name`` is unique within a sweep."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def spec(self, base: SimSpec) -> SimSpec:
        """Raises BadSpec for options that a run cannot be told."""
        return base.with_options(self.options)


def parse_arm(text: str) -> Arm:
    """``POLICY[/RETENTION] [KEY=VALUE ...]``: the text itself is the arm's name. Raises BadSpec."""
    words = text.split()
    if not words:
        raise BadSpec("an arm is POLICY[/RETENTION] [KEY=VALUE ...]")
    policy, slash, retention = words[0].partition("/")
    options: dict[str, Any] = {"policy": policy}
    if slash:
        options["retention"] = retention
    options.update(parse_settings(tuple(words[1:])))
    return Arm(" ".join(words), options)
