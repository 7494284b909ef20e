"""What is served when nothing is said: the preset that fits the GPUs of the Ray that will run it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import prism_ray
from prism_ray import application
from prism_ray.config import PrismConfig

GPU_PRESET, CPU_PRESET = "a800-qwen3-4b", "cpu-smollm2"
MACHINES = [({"CPU": 8.0, "GPU": 2.0}, GPU_PRESET), ({"CPU": 8.0}, CPU_PRESET)]


class Ray:
    """Stands in for Ray's module: connected or not, with or without a cluster to connect to."""

    def __init__(self, resources: dict[str, float] | None, connected: bool = False) -> None:
        self.resources = resources
        self.connected = connected
        self.asked_at: list[str] = []

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, address: str, **_: Any) -> None:
        self.asked_at.append(address)
        if self.resources is None:
            raise ConnectionError("no cluster")
        self.connected = True

    def cluster_resources(self) -> dict[str, float]:
        assert self.connected
        if not self.resources:
            raise RuntimeError("the cluster does not answer")
        return self.resources

    def shutdown(self) -> None:
        self.connected = False


@pytest.fixture
def ray_is(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ray]:
    def replace(resources: dict[str, float] | None, connected: bool = False) -> Ray:
        ray = Ray(resources, connected)
        monkeypatch.setattr(application, "ray", ray)
        return ray

    return replace


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[PrismConfig]:
    """The configs of all applications that are built, none of which is checked against this machine."""
    configs: list[PrismConfig] = []
    monkeypatch.setattr(application, "_check", lambda config: None)
    monkeypatch.setattr(application, "assemble", lambda config, app: configs.append(config))
    return configs


@pytest.mark.parametrize(("resources", "preset"), MACHINES)
def test_without_arguments_the_preset_fits_the_gpus_of_the_cluster(
    resources: dict[str, float],
    preset: str,
    ray_is: Callable[..., Ray],
    served: list[PrismConfig],
    caplog: pytest.LogCaptureFixture,
) -> None:
    ray_is(resources, connected=True)
    with caplog.at_level(logging.WARNING):
        prism_ray.app({})
    assert served == [PrismConfig.load(preset)]
    (line,) = caplog.messages
    assert f"{resources.get('GPU', 0):g} GPUs" in line
    assert preset in line


@pytest.mark.parametrize(("resources", "preset"), MACHINES)
def test_a_cluster_that_nobody_is_connected_to_is_asked_and_left_again(
    resources: dict[str, float], preset: str, ray_is: Callable[..., Ray]
) -> None:
    ray = ray_is(resources)
    assert application._default_config() == preset
    assert ray.asked_at == ["auto"]
    assert not ray.connected


def test_it_is_the_cluster_that_serve_run_was_pointed_at(ray_is: Callable[..., Ray]) -> None:
    ray = ray_is({"GPU": 1.0})
    command = click.Command("run", params=[click.Option(["--address"])])
    with command.make_context("run", ["--address", "ray://head:10001"]):
        assert application._gpus() == 1.0
    assert ray.asked_at == ["ray://head:10001"]


def test_it_is_left_when_it_does_not_answer_too(ray_is: Callable[..., Ray]) -> None:
    ray = ray_is({})
    with pytest.raises(RuntimeError):
        application._default_config()
    assert not ray.connected


@pytest.mark.parametrize(
    ("visible", "gpus"), [("", 0), ("-1", 0), ("0", 1), ("0,3", 2), ("GPU-8a1b, GPU-77cd", 2)]
)
def test_without_a_cluster_those_count_that_a_ray_started_here_would_see(
    visible: str, gpus: int, ray_is: Callable[..., Ray], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert application._gpus() == gpus


@pytest.mark.parametrize(("drivers", "preset"), [(2, GPU_PRESET), (0, CPU_PRESET)])
def test_where_nothing_hides_them_all_of_this_machine_count(
    drivers: int,
    preset: str,
    ray_is: Callable[..., Ray],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ray_is(None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(application, "GPU_DRIVERS", tmp_path)
    for number in range(drivers):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    assert application._default_config() == preset


def test_a_config_that_is_named_asks_no_cluster(
    ray_is: Callable[..., Ray], served: list[PrismConfig]
) -> None:
    ray = ray_is({"GPU": 8.0})
    prism_ray.app({"config": "simulated"})
    assert served == [PrismConfig.load("simulated")]
    assert ray.asked_at == []
