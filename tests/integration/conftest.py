"""Models for tests with the real engine, and what those tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.bench.ports import free_ports
from prism_ray.serving.serve_mode import haproxy_environment, mode_environment, set_environment

REPOSITORY = Path(__file__).parents[2]

MODE_VARIABLE = "PRISM_TEST_SERVE_MODE"
"""Serve's mode for this whole run of pytest; without it, whatever the environment says."""

# Before any Ray starts: its processes take the environment of this moment.
os.environ.setdefault("PRISM_MODELS_DIR", str(REPOSITORY / "models"))


def _select_mode(mode: str) -> tempfile.TemporaryDirectory[str]:
    """Serve's variables; returns the directory of HAProxy's files, which goes with the process."""
    scratch = tempfile.TemporaryDirectory(prefix="pr-", dir="/tmp")  # short: sockets lie in it
    environment = mode_environment(mode)
    if mode == "haproxy":
        ports = dict(
            zip(("metrics_port", "stats_port", "fallback_port"), free_ports(3), strict=True)
        )
        environment |= haproxy_environment(Path(scratch.name), **ports)
    # No load balancer has to notice that an ingress stops: a shutdown need not take 30 s.
    environment["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] = "1"
    set_environment(environment)
    return scratch


if MODE_VARIABLE in os.environ:
    _scratch = _select_mode(os.environ[MODE_VARIABLE])


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Where models lie: PRISM_MODELS_DIR, or models/ of the checkout."""
    return Path(os.environ.get("PRISM_MODELS_DIR") or REPOSITORY / "models")


@pytest.fixture(scope="session")
def random_tiny(models_dir: Path, monkeypatch_session: pytest.MonkeyPatch) -> Path:
    """A two-layer Llama of random weights with SmolLM2's tokenizer; made if it is not there."""
    pytest.importorskip("sglang")
    from prism_ray.engine.checkpoints.random_llama import shapes, write_random_llama
    from prism_ray.engine.checkpoints.smollm2 import fetch_smollm2

    monkeypatch_session.setenv("PRISM_MODELS_DIR", str(models_dir))
    tokenizer = fetch_smollm2(models_dir / "SmolLM2-135M-Instruct")
    return write_random_llama(models_dir / "random-tiny", shapes["tiny"], tokenizer)


@pytest.fixture(scope="session")
def smollm2(models_dir: Path, monkeypatch_session: pytest.MonkeyPatch) -> Path:
    """SmolLM2 where `models:` paths find it; fetched and converted if it is not there."""
    pytest.importorskip("sglang")
    from prism_ray.engine.checkpoints.smollm2 import fetch_smollm2

    monkeypatch_session.setenv("PRISM_MODELS_DIR", str(models_dir))
    return fetch_smollm2(models_dir / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="session")
def monkeypatch_session() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch
