"""Policies by name. Apart from the protocol, so that policies need not know each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_ray import baselines, prism, qas
from prism_ray.scheduling import POLICIES, Scheduler
from prism_ray.tenancy import FairScheduler, TenantWeights

__all__ = [
    "baselines",
    "default_retention",
    "make_fair_scheduler",
    "make_scheduler",
    "prism",
    "qas",
]


def make_scheduler(name: str, params: Mapping[str, Any] | None = None) -> Scheduler:
    """Build the policy registered as ``name``; its parameters are checked by the policy itself.

    Raises UnknownName, and ValueError for parameters that the policy does not have.
    """
    return POLICIES[name](params or {})


def default_retention(name: str) -> str:
    """The retention strategy that the policy ``name`` was made for: its ``retention``, else lru.

    Raises UnknownName.
    """
    return str(getattr(POLICIES[name], "retention", "lru"))


def make_fair_scheduler(
    name: str, params: Mapping[str, Any] | None = None, weights: TenantWeights | None = None
) -> FairScheduler:
    """Like ``make_scheduler``, with an instance of the policy for each tenant."""
    return FairScheduler(lambda: make_scheduler(name, params), weights)
