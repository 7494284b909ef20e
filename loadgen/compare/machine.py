"""The engine that all arms of a comparison share: model, device, SGLang's arguments. Starts none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.compare.workload import Workload
from loadgen.real.engines import random_model
from prism_ray.config import PrismConfig, presets
from prism_ray.engine.checkpoints.directory import models_dir
from prism_ray.engine.checkpoints.smollm2 import fetch_smollm2
from prism_ray.engine.cpu.environment import cpu_engine_args

CPU_19M = "cpu-19m"
CPU_SMOLLM2 = "cpu-smollm2"


@dataclass(frozen=True)
class Machine:
    """An engine but for what arms differ in (schedule policy, retention).

    ``server_args``: SGLang's ServerArgs by name. ``pool_by_workload``: the pool is the workload's
    share of unique tokens; else what SGLang finds room for. ``profile``: the simulator's, where it
    is not fitted to this engine. ``workload``: what the setting serves by default.
    """

    name: str
    model: str
    cpu: bool
    server_args: Mapping[str, Any]
    pool_by_workload: bool
    workload: Workload = field(default_factory=Workload)
    profile: str | None = None

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """SGLang's arguments with the workload's pool."""
        device = cpu_engine_args() if self.cpu else {}
        pool = {"max_total_tokens": workload.pool_tokens} if self.pool_by_workload else {}
        return {**device, **self.server_args, **pool}

    def to_json(self) -> dict[str, Any]:
        model = Path(self.model)
        return {
            "name": self.name,
            "model": model.name if model.is_absolute() else self.model,
            "device": "cpu" if self.cpu else "cuda",
            "server_args": dict(self.server_args),
        }


def machine(source: str) -> Machine:
    """A machine by name, or from a config of the product (a preset's name or a file).

    Of a config its model, device, engine arguments and ``max_running`` are taken; policies are the
    arms'. Raises ConfigError for a file that is no config, CheckpointUnavailable without the model.
    """
    if source == CPU_19M:
        return Machine(CPU_19M, str(random_model("19m")), True, _CPU_ARGS, pool_by_workload=True)
    if source == CPU_SMOLLM2:
        path = fetch_smollm2(models_dir() / "SmolLM2-135M-Instruct")
        arguments = {**_CPU_ARGS, "chunked_prefill_size": 512}
        smaller = Workload(requests=60)
        return Machine(CPU_SMOLLM2, str(path), True, arguments, True, smaller)
    return _of_config(source, PrismConfig.load(source))


_CPU_ARGS: Mapping[str, Any] = {
    "chunked_prefill_size": 1024,
    "max_running_requests": 8,
    "context_length": 4096,
    "log_level": "error",
}
"""Half of the pool of the default workload is what runs, as in the paper's setting: the rest is cache."""


def _of_config(source: str, config: PrismConfig) -> Machine:
    arguments = {
        "log_level": "error",
        "max_running_requests": config.replicas.max_running,
        **config.engine.args,
    }
    cpu = config.device == "cpu"
    known = source if source in presets() and not cpu else None
    paper = Workload("zipf_hotspot", {}, 2048)
    return Machine(
        source if source in presets() else Path(source).stem,
        config.model.resolved_path(),
        cpu,
        arguments,
        pool_by_workload=cpu and "max_total_tokens" not in config.engine.args,
        workload=Workload() if cpu else paper,
        profile=known,
    )
