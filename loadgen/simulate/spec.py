"""What a simulated run is told: names, numbers and options, checked; nothing is run here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from prism_ray.engine.limits import StepParams
from prism_ray.engine.profile import Profile, load_profile
from prism_ray.policies import default_retention

SECTIONS = ("trace", "policy", "placement", "engine", "cost")
"""Options with a dot: what stands before it."""


class BadSpec(ValueError):
    """An option that a run cannot be told; the message names it."""


@dataclass(frozen=True)
class SimSpec:
    """One run. ``None``: the default that depends on the rest.

    ``seed`` draws prompts and arrivals. ``retention`` is the policy's own by default, ``placement``
    ``single`` for one replica and ``least-loaded`` for more, ``qps`` 0.9 of the kept knee
    (``loadgen.simulate.knees``). ``engine`` overrides StepParams, ``cost`` the profile's CostModel
    (seconds). ``in_flight`` bounds the requests sent to a replica, by default the engine's
    ``max_running``; ``tells_cache`` False: the scheduler predicts residency from its own dispatches,
    else the engines say what they hold. Delays are those of ``loadgen.virtual.Delays``.
    """

    trace: str = "zipf_hotspot"
    policy: str = "qas"
    retention: str | None = None
    placement: str | None = None
    replicas: int = 1
    qps: float | None = None
    seed: int = 0
    requests: int = 2048
    profile: str = "a800-qwen3-4b"
    arrivals: str = "poisson"
    in_flight: int | None = None
    tells_cache: bool = True
    round_interval_s: float = 0.020
    plan_delay_s: float = 0.001
    credit_delay_s: float = 0.001
    trace_options: Mapping[str, Any] = field(default_factory=dict)
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    placement_options: Mapping[str, Any] = field(default_factory=dict)
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    cost_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.replicas, self.requests) < 1:
            raise BadSpec("replicas and requests must be ≥ 1")
        if self.qps is not None and not 0 < self.qps < float("inf"):
            raise BadSpec(f"qps must be above 0, got {self.qps}")
        if self.in_flight is not None and self.in_flight < 1:
            raise BadSpec(f"in_flight must be ≥ 1, got {self.in_flight}")
        if min(self.round_interval_s, self.plan_delay_s, self.credit_delay_s) < 0:
            raise BadSpec("intervals and delays cannot be negative")

    def filled(self) -> SimSpec:
        """The same run with retention and placement named. Raises UnknownName."""
        placement = self.placement or ("single" if self.replicas == 1 else "least-loaded")
        retention = self.retention or default_retention(self.policy)
        return replace(self, placement=placement, retention=retention)

    def machine(self) -> tuple[StepParams, Profile]:
        """Engine limits and the profile, overrides applied. Raises BadProfile, BadSpec."""
        profile = load_profile(self.profile)
        try:
            cost = replace(profile.cost, **self.cost_options)
            overrides = {**self.engine_options, "retention": self.filled().retention}
            return profile.params(**overrides), replace(profile, cost=cost)
        except (TypeError, ValueError) as error:
            raise BadSpec(f"engine or cost options: {error}") from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def with_options(self, options: Mapping[str, Any]) -> SimSpec:
        """A copy with options as ``--set`` and ``--config`` give them. Raises BadSpec.

        Keys are names of fields, or ``section.name`` for ``SECTIONS``; a section may also be a
        mapping.
        """
        plain = {f.name for f in fields(self)} - {f"{section}_options" for section in SECTIONS}
        changes: dict[str, Any] = {}
        for key, value in _flat(options):
            section, dot, name = key.partition(".")
            if dot and section in SECTIONS:
                slot = f"{section}_options"
                changes[slot] = {**changes.get(slot, getattr(self, slot)), name: value}
            elif key in plain:
                changes[key] = value
            else:
                dotted = ", ".join(f"{s}.*" for s in SECTIONS)
                raise BadSpec(
                    f"unknown option {key!r}; known: {', '.join(sorted(plain))}, {dotted}"
                )
        return replace(self, **changes)


def _flat(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in options.items():
        if key in SECTIONS and isinstance(value, Mapping):
            flat += [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            flat.append((key, value))
    return flat


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """``key=value`` texts as options; values are JSON, or plain text. Raises BadSpec."""
    options: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise BadSpec(f"{setting!r} is not of the form key=value")
        options[key] = _value(text)
    return options


def _value(text: str) -> Any:
    """A JSON value where it is one (so that 1e6 is a number), else plain text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
