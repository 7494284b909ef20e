"""Checks a prism_ray config: the schema, and the names and parameters that it gives to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from prism_ray.config import ConfigError, PrismConfig
from prism_ray.config_errors import Problem
from prism_ray.config_files import MODELS_PREFIX
from prism_ray.config_params import parameter_problems
from prism_ray.dart.params import RetentionParams
from prism_ray.dart.retention import RETENTION
from prism_ray.engine import make_engine
from prism_ray.placement import PLACEMENTS, make_placement
from prism_ray.policies import make_scheduler
from prism_ray.registry import Registry
from prism_ray.scheduling import POLICIES
from prism_ray.validate.report import Report


def check_prism(document: Mapping[str, Any], report: Report) -> None:
    """A config on its own."""
    check_prism_source(document, report, "")


def check_prism_source(
    source: str | Mapping[str, Any], report: Report, prefix: str
) -> PrismConfig | None:
    """A config, or what names one, at ``prefix`` (ending in a dot) of another document."""
    try:
        config = PrismConfig.load(source)
    except ConfigError as error:
        report.problems += [p._replace(path=prefix + p.path) for p in error.problems]
        return None
    report.configs[prefix.rstrip(".") or report.source] = config
    report.problems += [p._replace(path=prefix + p.path) for p in policy_problems(config)]
    if (config.model.path or "").startswith(MODELS_PREFIX):
        try:
            config.model.resolved_path()
        except ConfigError as error:
            report.notes.append(f"unchecked: {error}")
    return config


def policy_problems(config: PrismConfig) -> Iterator[Problem]:
    """Names that are registered nowhere, and parameters that those who have the name refuse."""
    if config.retention.policy not in RETENTION:
        expected = f"one of {', '.join(RETENTION)}"
        yield Problem("retention.policy", expected, config.retention.policy)
    elif config.engine.kind == "simulated":
        yield from _simulated_problems(config)
    else:
        yield from retention_problems(config)
    makers: dict[str, tuple[Registry[Any], Callable[..., object]]] = {
        "scheduler": (POLICIES, make_scheduler),
        "placement": (PLACEMENTS, make_placement),
    }
    for section, (names, make) in makers.items():
        chosen = getattr(config, section)
        if chosen.policy not in names:
            yield Problem(f"{section}.policy", f"one of {', '.join(names)}", chosen.policy)
            continue
        yield from parameter_problems(
            f"{section}.params", chosen.params, partial(make, chosen.policy)
        )


def retention_problems(config: PrismConfig) -> Iterator[Problem]:
    """What is wrong with ``retention.params``, whatever the engine."""
    params = config.retention.params
    return parameter_problems("retention.params", params, RetentionParams.from_mapping)


def _simulated_problems(config: PrismConfig) -> tuple[Problem, ...]:
    try:
        make_engine(config)
    except ConfigError as error:
        return error.problems
    return ()
