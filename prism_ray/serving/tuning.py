"""What a running application can be told without a restart: Serve's ``user_config``, checked.

The ingress gets it from Serve (``reconfigure``) and hands it on to its QAS actor. It has the shape of
the config, holds only what differs from it, and always counts from the deployed config: a key that is
left out again goes back to its deployed value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_ray.config import LimitsConfig, PrismConfig
from prism_ray.config_errors import ConfigError, Problem

TUNABLE: dict[str, frozenset[str]] = {
    "scheduler": frozenset({"round_interval_s"}),
    # Replicas read the timeout, too, and they are not told.
    "limits": frozenset(LimitsConfig.model_fields) - {"qas_timeout_s"},
}
"""Section -> keys. All else is fixed at deployment: policies, placement, models, counts."""


def retuned(deployed: PrismConfig, user_config: Mapping[str, Any]) -> PrismConfig:
    """The deployed config with ``user_config`` laid over it. Raises ConfigError, path by path."""
    problems = list(_problems(deployed, user_config))
    if problems:
        raise ConfigError(problems)
    data = deployed.model_dump()
    for section, values in user_config.items():
        data[section] |= values
    return PrismConfig.load(data)


def _problems(deployed: PrismConfig, user_config: Mapping[str, Any]) -> list[Problem]:
    found = []
    for section, values in user_config.items():
        if section not in TUNABLE:
            expected = f"one of {', '.join(sorted(TUNABLE))} (the rest needs a new deployment)"
            found.append(Problem(section, expected, values))
        elif not isinstance(values, Mapping):
            found.append(Problem(section, "a mapping", values))
        else:
            for key in values.keys() - TUNABLE[section]:
                expected = f"one of {', '.join(sorted(TUNABLE[section]))}"
                found.append(Problem(f"{section}.{key}", expected, values[key]))
    limits = user_config.get("limits")
    asked = limits.get("queue_requests") if isinstance(limits, Mapping) else None
    # Serve's own caps were derived from it: above them Serve would queue out of our sight.
    if isinstance(asked, int) and asked > deployed.limits.queue_requests:
        expected = f"at most {deployed.limits.queue_requests}, as deployed"
        found.append(Problem("limits.queue_requests", expected, asked))
    return found
