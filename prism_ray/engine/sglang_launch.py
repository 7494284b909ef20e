"""What an SGLang engine's processes start with: server arguments and environment. Starts nothing.

Imports neither SGLang nor torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from prism_ray.config import FIXED_ENGINE_ARGS
from prism_ray.dart.sglang_plugin import PARAMS_VARIABLE, RETENTION_VARIABLE
from prism_ray.engine.base import EngineDied
from prism_ray.engine.cpu.environment import PLUGIN_NAME, cpu_engine_args, cpu_environment
from prism_ray.engine.sglang_plugin import backend_of

OUR_SERVER_ARGS: Mapping[str, Any] = {
    "schedule_policy": "fcfs",  # the queue's order is the order of submission
    "enable_priority_scheduling": False,
    **FIXED_ENGINE_ARGS,
}
"""ServerArgs that ``engine.sglang`` is built on; no other values are accepted."""


def launch_args(
    model_path: str, configured: Mapping[str, Any], retention: str, cpu: bool
) -> dict[str, Any]:
    """SGLang's ServerArgs by field name: a CPU's defaults, then the configured, then ours.

    Raises ValueError if a configured one contradicts ours.
    """
    fixed = {**OUR_SERVER_ARGS, "radix_cache_backend": backend_of(retention)}
    defaults = {"log_level": "warning", **(cpu_engine_args() if cpu else {})}
    arguments = {**defaults, **fixed, **configured, "model_path": model_path}
    for name, ours in fixed.items():
        if arguments[name] != ours:
            raise ValueError(
                f"server argument {name} must be {ours!r} here, not {arguments[name]!r}"
            )
    return arguments


def launch_environment(
    configured: Mapping[str, str],
    retention: str,
    retention_params: Mapping[str, Any],
    cpu_threads: int | None,
) -> dict[str, str]:
    """This process's variables, what the engine's own need, then the configured ones.

    ``cpu_threads``: OpenMP threads of an engine without a GPU; None with one.
    """
    variables = {**os.environ, "SGLANG_PLUGINS": PLUGIN_NAME}
    if cpu_threads is not None:
        variables |= cpu_environment(cpu_threads)
    return {
        **variables,
        **configured,
        RETENTION_VARIABLE: retention,
        PARAMS_VARIABLE: json.dumps(dict(retention_params)),
    }


def check_plugin_installed() -> None:
    """Raises EngineDied where SGLang's processes would not find our plugin."""
    if not any(point.name == PLUGIN_NAME for point in entry_points(group="sglang.srt.plugins")):
        raise EngineDied(
            "SGLang cannot find our plugin: prism_ray is importable here but not installed; "
            'run pip install "prism-ray[sglang]" (or pip install -e . in a checkout)'
        )
