"""Inference engines by name, behind one protocol (``base``); each is imported only when it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prism_ray.registry import Registry

if TYPE_CHECKING:
    from prism_ray.config import PrismConfig
    from prism_ray.engine.base import Engine

ENGINES: Registry[Callable[[PrismConfig], Engine]] = Registry("engine")
"""What ``engine.kind`` names: functions that make an engine which is not started yet."""


def make_engine(config: PrismConfig) -> Engine:
    """The engine that ``config`` asks for, not started. Raises UnknownName, ConfigError."""
    return ENGINES[config.engine.kind](config)


@ENGINES.register("sglang")
def _sglang(config: PrismConfig) -> Engine:
    from prism_ray.engine.sglang import from_config

    return from_config(config)


@ENGINES.register("simulated")
def _simulated(config: PrismConfig) -> Engine:
    from prism_ray.engine.simulated import from_config

    return from_config(config)
