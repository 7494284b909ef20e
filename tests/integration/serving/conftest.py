"""A real Ray, a real Serve and a real HTTP port for the tests of the application.

One Ray and one Serve for all modules here, since starting them takes longer than most tests; each
module deploys its own application and takes it away again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from ray import serve

from prism_ray.application import SERVE_ENVIRONMENT, assemble
from prism_ray.config import PrismConfig
from prism_ray.serving.replica import Replica

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class SharedServe:
    """Ray and Serve of these tests; CPUs are only what Ray counts."""

    def __init__(self) -> None:
        self._port: int | None = None

    def start(self) -> int:
        """Its HTTP port; started with the first call."""
        if self._port is None:
            os.environ.update(SERVE_ENVIRONMENT)  # a lost QAS actor is found soon, as delivered
            self._port = free_port()
            ray.init(
                num_cpus=8, include_dashboard=False, logging_level="warning", namespace="tests"
            )
            serve.start(http_options={"host": "127.0.0.1", "port": self._port})
        return self._port

    def clear(self) -> None:
        """Take all applications away."""
        if self._port is not None:
            for name in serve.status().applications:
                serve.delete(name)

    def stop(self) -> None:
        if self._port is not None:
            self._port = None
            serve.shutdown()
            ray.shutdown()


SHARED = SharedServe()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Nothing of it is left for tests elsewhere."""
    yield
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        SHARED.stop()


@pytest.fixture(scope="module")
def serve_port() -> Iterator[int]:
    """The port of a Serve without applications; those of a module go with it."""
    yield SHARED.start()
    SHARED.clear()


@pytest.fixture
def no_serve() -> None:
    """For tests that start a Serve of their own: there is no other beside it."""
    SHARED.stop()


@pytest.fixture(scope="module")
def run_app(serve_port: int) -> Callable[..., httpx.Client]:
    """Deploy the application with a config; a client for it once it is ready."""

    def run(config: dict[str, Any] | str, replica_class: type[Replica] = Replica) -> httpx.Client:
        application = assemble(PrismConfig.load(config), replica_class=replica_class)
        serve.run(application, name="default", route_prefix="/")
        client = httpx.Client(base_url=f"http://127.0.0.1:{serve_port}", timeout=120.0)
        deadline = time.monotonic() + 30
        while client.get("/ready").status_code != 200:
            assert time.monotonic() < deadline, "the application did not get ready"
            time.sleep(0.1)
        return client

    return run
