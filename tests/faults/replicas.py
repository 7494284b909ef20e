"""Replicas that can be made to fail from outside, and a mix of one real engine and simulated ones."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import ray

from prism_ray.config import PrismConfig
from prism_ray.engine import make_engine
from prism_ray.engine.base import Engine
from prism_ray.engine.simulated import SimulatedEngine
from prism_ray.serving.replica import Replica

CHUNK = 256

SIMULATED: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 3, "num_cpus": 0.5, "max_running": 8},
    "ingress": {"count": 2, "num_cpus": 0.1},
    "placement": {"policy": "e2"},
    "engine": {
        "simulated": {
            "cost": "step-25ms",
            "chunked_prefill_tokens": CHUNK,
            "max_prefill_tokens": CHUNK,
            "pool_tokens": 20_000,
            "context_length": 4096,
        }
    },
}

MIXED: dict[str, Any] = SIMULATED | {
    "model": {"name": "simulated", "tokenizer": "models:random-tiny"},
}
"""For MixedReplica: simulated engines that count tokens as the real one does."""

_REAL: dict[str, Any] = {
    "extends": "cpu-smollm2",
    "model": {"name": "simulated", "path": "models:random-tiny"},
    "replicas": SIMULATED["replicas"],
    "placement": SIMULATED["placement"],
    "engine": {
        "args": {
            "max_total_tokens": 20_000,
            "context_length": 4096,
            "chunked_prefill_size": CHUNK,
            "log_level": "error",
        }
    },
}


class FaultyReplica(Replica):
    """A replica whose engine can be slowed down, or crash."""

    def _simulated(self) -> SimulatedEngine:
        assert isinstance(self._engine, SimulatedEngine)
        return self._engine

    async def set_speed(self, speed: float) -> None:
        engine = self._simulated()
        engine.params = dataclasses.replace(engine.params, speed=speed)

    async def crash_engine(self) -> None:
        await self._simulated().crash()


class MixedReplica(FaultyReplica):
    """The first of an application's replicas runs SGLang on a small random model, the others none.

    Whoever holds a lock is the first; it goes with the process, or as soon as the engine is dead, and
    the replica that takes its place gets it.
    """

    _lock: IO[bytes] | None = None

    def _make_engine(self, config: PrismConfig) -> Engine:
        lock = real_engine_lock(ray.get_runtime_context().get_session_name()).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return super()._make_engine(config)
        self._lock = lock
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        lock.flush()
        return make_engine(PrismConfig.load(_REAL))

    def _die(self, reason: str) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        super()._die(reason)


def make_random_tiny() -> Path:
    """The model of the real engine: two layers of random weights; made if it is not there."""
    from prism_ray.engine.checkpoints.directory import models_dir
    from prism_ray.engine.checkpoints.random_llama import shapes, write_random_llama
    from prism_ray.engine.checkpoints.smollm2 import fetch_smollm2

    tokenizer = fetch_smollm2(models_dir() / "SmolLM2-135M-Instruct")
    return write_random_llama(models_dir() / "random-tiny", shapes["tiny"], tokenizer)


def real_engine_lock(session: str) -> Path:
    """The lock file of a Ray session; it holds the process id of the replica with the real engine."""
    return Path(tempfile.gettempdir()) / f"prism-real-engine-{session}.lock"


def real_replica_pid() -> int | None:
    """Process id of the replica with the real engine; None before there is one."""
    path = real_engine_lock(ray.get_runtime_context().get_session_name())
    text = path.read_text() if path.exists() else ""
    return int(text) if text else None
