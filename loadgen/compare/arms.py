"""Who is compared: SGLang's own policies and ours, each under one name. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prism_ray.policies import default_retention


@dataclass(frozen=True)
class Arm:
    """A policy with its retention, and who schedules.

    ``native``: SGLang's own HTTP server with ``--schedule-policy policy``, nothing of ours in it; the
    requests go to it as they arrive. Else the product's dispatcher with ``policy`` in front of an
    engine that serves first come, first served. ``refresh`` False: SGLang does not renew the recency
    of what waits. ``simulated``: the policy that says in the simulator what this arm does.
    ``placement``: who chooses among several engines, a router's program for native arms, else one of
    our placements; empty: there is one engine. ``reorders``: the client asks ContextPilot's server for
    the order of a prompt's documents before it sends it.
    """

    name: str
    policy: str
    native: bool = False
    retention: str = "lru"
    refresh: bool = True
    simulated: str = ""
    placement: str = ""
    reorders: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def simulated_policy(self) -> str:
        return self.simulated or self.policy


def _native(policy: str, simulated: str = "", *, refresh: bool = True, suffix: str = "") -> Arm:
    name = f"sglang-{policy}{suffix}"
    return Arm(name, policy, native=True, refresh=refresh, simulated=simulated)


def _ours(policy: str, retention: str | None = None, name: str = "") -> Arm:
    retention = retention or default_retention(policy)
    return Arm(name or policy, policy, retention=retention)


FAITHFUL = "qas+dart"
DEFAULT = "prism"
CONTROL = "dispatcher-fcfs"

ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        _native("fcfs", "fcfs-refresh"),
        _native("fcfs", refresh=False, suffix="-norefresh"),
        _native("lpm"),
        _native("hrrn"),
        _ours("fcfs", name=CONTROL),
        _ours("k-lpm"),
        _ours("contextpilot"),
        _ours("qas", name=FAITHFUL),
        _ours("prism", name=DEFAULT),
    )
}
"""In the order of the table. ``dispatcher-fcfs`` says what our way to the engine costs or saves."""

SEVERAL: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("sglang-router", "fcfs", True, simulated="fcfs-refresh", placement="sglang-router"),
        Arm("sglang-router-lpm", "lpm", True, placement="sglang-router"),
        Arm("sglang-smg", "fcfs", True, simulated="fcfs-refresh", placement="smg"),
        Arm("dispatcher-cache-aware", "fcfs", placement="cache-aware"),
        Arm(FAITHFUL, "qas", retention="dart", placement="e2"),
        Arm("prism-least-loaded", "prism", retention="planned", placement="least-loaded"),
        Arm(DEFAULT, "prism", retention="planned", placement="e2"),
    )
}
"""The arms for several engines. Natively a router with its cache-aware rule is in front of servers."""

CONTEXTPILOT = Arm(
    "sglang-fcfs+contextpilot", "fcfs", True, simulated="contextpilot", reorders=True
)
"""Needs ContextPilot's package in an environment of its own; so it is no arm by default."""

QUICK = ("sglang-fcfs", "sglang-lpm", "sglang-hrrn", "k-lpm", FAITHFUL, DEFAULT)


def arms_of(names: Sequence[str], replicas: int = 1) -> list[Arm]:
    """Arms by name (all without any), in the order of the table. Raises ValueError for an unknown one."""
    known = {**ARMS, CONTEXTPILOT.name: CONTEXTPILOT} if replicas == 1 else SEVERAL
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(
            f"no arm {', '.join(unknown)} with {replicas} engines; known: {', '.join(known)}"
        )
    return [arm for arm in known.values() if arm.name in (names or _default(known))]


def _default(known: Mapping[str, Arm]) -> list[str]:
    return [name for name, arm in known.items() if not arm.reorders]


EVERY = {**ARMS, CONTEXTPILOT.name: CONTEXTPILOT, **SEVERAL}
"""Every name of an arm, in the order of a table. A name's arm depends on the number of engines."""
