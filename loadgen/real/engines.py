"""Real engines for measurements: SGLang on a CPU with a small random model, one context manager each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.real.cluster import StartedEngine
from loadgen.real.token_ids import AtomTokens
from prism_ray.engine.checkpoints.directory import is_checkpoint, models_dir
from prism_ray.engine.sglang import SglangEngine

NO_REFRESH = {"SGLANG_ENABLE_WAITING_PREFIX_REFRESH": "0"}
"""Environment under which SGLang does not renew the recency of what waits."""

ENGINE_GIB = 2.6
"""Memory of a small model's engine: three Python processes with SGLang in each."""
SPARE_GIB = 2.0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A real engine on this machine: a model directory and its limits, in tokens and requests."""

    model: Path
    pool_tokens: int
    chunked_prefill_tokens: int = 1024
    max_running: int = 16
    context_length: int = 4096
    retention: str = "lru"
    refresh: bool = True

    def server_args(self) -> dict[str, Any]:
        """SGLang's ServerArgs by name."""
        return {
            "max_total_tokens": self.pool_tokens,
            "chunked_prefill_size": self.chunked_prefill_tokens,
            "max_running_requests": self.max_running,
            "context_length": self.context_length,
            "log_level": "error",
        }

    def environment(self) -> dict[str, str]:
        """Variables of the engine's processes."""
        return {} if self.refresh else dict(NO_REFRESH)


@asynccontextmanager
async def running_engine(
    model: str,
    server_args: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    cpu: bool = True,
    retention: str = "lru",
) -> AsyncIterator[StartedEngine]:
    """An engine with any arguments, started; stopped when the context ends."""
    engine = SglangEngine(model, server_args, cpu=cpu, environment=environment, retention=retention)
    try:
        yield StartedEngine(engine, await engine.start())
    finally:
        await engine.stop()


@asynccontextmanager
async def running(
    spec: EngineSpec, environment: Mapping[str, str] | None = None
) -> AsyncIterator[StartedEngine]:
    """The engine of a spec on this CPU, started; stopped when the context ends."""
    variables = {**spec.environment(), **(environment or {})}
    arguments = spec.server_args()
    async with running_engine(
        str(spec.model), arguments, variables, retention=spec.retention
    ) as started:
        yield started


async def flushed(started: StartedEngine) -> None:
    """Empty the engine's cache. Raises RuntimeError if something still runs."""
    if not await started.engine.flush_cache():
        raise RuntimeError("the engine's cache could not be flushed: requests are running")


def random_model(shape: str) -> Path:
    """The random-weight model of a shape's name ("tiny", "19m"), made if it is not there.

    Raises CheckpointUnavailable where its tokenizer cannot be had.
    """
    path = models_dir() / f"random-{shape}"
    if is_checkpoint(path):
        return path
    from prism_ray.engine.checkpoints.random_llama import shapes, write_random_llama
    from prism_ray.engine.checkpoints.smollm2 import fetch_smollm2

    tokenizer = fetch_smollm2(models_dir() / "SmolLM2-135M-Instruct")
    return write_random_llama(path, shapes[shape], tokenizer)


def engines_that_fit() -> int:
    """How many idle engines this machine's free memory holds at once; at least one."""
    return max(1, int((free_gib() - SPARE_GIB) / ENGINE_GIB))


def free_gib() -> float:
    """Memory that processes can still have on this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return kib / 1024**2


def token_ids_for(model: Path) -> AtomTokens:
    """Token ids of a model directory's vocabulary."""
    config = json.loads((model / "config.json").read_text())
    return AtomTokens(int(config["vocab_size"]))
