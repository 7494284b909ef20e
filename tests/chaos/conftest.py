"""A Ray and a Serve of the chaos tests' own: nothing of what they do to it is left for others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve

from loadgen.bench.ports import free_ports
from prism_ray.application import SERVE_ENVIRONMENT, assemble
from prism_ray.config import PrismConfig
from prism_ray.serving.replica import Replica
from tests.faults.application import Application

REPOSITORY = Path(__file__).parents[2]

# Before any Ray starts: its processes take the environment of this moment.
os.environ.setdefault("PRISM_MODELS_DIR", str(REPOSITORY / "models"))


RAY_STARTS = 3


def _start_ray() -> None:
    """Again if it gave up, as Ray does after 30 s where others take the CPUs."""
    for left in reversed(range(RAY_STARTS)):
        try:
            ray.init(
                num_cpus=16, include_dashboard=False, logging_level="warning", namespace="tests"
            )
            return
        except Exception as error:  # Ray's own words are all that tells it apart
            if not left or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


@pytest.fixture
def deploy() -> Iterator[Callable[[dict[str, Any], type[Replica]], Application]]:
    """Start Ray and Serve and deploy an application on it; all of it ends with the test."""

    def run(config: dict[str, Any], replica_class: type[Replica]) -> Application:
        os.environ.update(SERVE_ENVIRONMENT)
        # Ray's workers are very nice (15): beside anything else, a real engine would start for minutes.
        os.environ.setdefault("RAY_worker_niceness", "0")
        (port,) = free_ports(1)
        _start_ray()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        loaded = PrismConfig.load(config)
        began_s = time.monotonic()
        serve.run(assemble(loaded, replica_class=replica_class), name="default", route_prefix="/")
        start_s = time.monotonic() - began_s
        counts = loaded.replicas.count, loaded.ingress.count
        return Application(f"http://127.0.0.1:{port}", *counts, start_s)

    yield run
    if ray.is_initialized():  # else Serve would start one
        serve.shutdown()
        ray.shutdown()
