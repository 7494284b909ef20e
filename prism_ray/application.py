"""Builds the Serve application from a config: ingress with its QAS actor, replicas, request router."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Any

import click
import ray
from pydantic import BaseModel, ConfigDict, ValidationError
from ray import serve
from ray.serve.config import DeploymentActorConfig, RequestRouterConfig

from prism_ray.config import PrismConfig, default_preset
from prism_ray.config_errors import ConfigError, Problem, from_validation
from prism_ray.serving.autoscaling import replica_count
from prism_ray.serving.ingress import REPLICA_DEPLOYMENT, Ingress
from prism_ray.serving.qas_actor import QasActor
from prism_ray.serving.qas_link import QAS_ACTOR
from prism_ray.serving.replica import Replica
from prism_ray.validate.prism import policy_problems

logger = logging.getLogger(__name__)

SERVE_ENVIRONMENT = {
    "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_TIMEOUT_S": "5",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
}
"""How soon Serve's controller finds the QAS actor dead, or hanging, and makes a new one (10 s and 30 s
by default), and how often it looks at its HTTP proxies (10 s; three looks in vain make a new one). It
reads this when it starts: set it where Ray is started, as the cluster files do."""

GPU_DRIVERS = Path("/proc/driver/nvidia/gpus")
"""One entry for each NVIDIA GPU of this machine; missing where there is no driver."""


class AppArgs(BaseModel):
    """Arguments of the application builder: what ``serve run`` and ``args:`` of Serve YAML may say."""

    model_config = ConfigDict(extra="forbid")

    config: str | dict[str, Any] | None = None
    app: str = "default"
    """Name under which telemetry is kept."""


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application for a config (preset name, file or mapping; default by the cluster's GPUs).

    ``arguments`` are those of AppArgs. Raises ConfigError for others, and for a config that cannot be
    run here, before anything is started; under a command line a ClickException that says the same.
    """
    for name, value in SERVE_ENVIRONMENT.items():  # for a Ray that is yet to be started from here
        os.environ.setdefault(name, value)
    try:
        args = _app_args(arguments)
        config = PrismConfig.load(args.config if args.config is not None else _default_config())
        _check(config)
    except ConfigError as error:
        if click.get_current_context(silent=True) is None:
            raise
        # ``serve run`` shows a traceback of anything else.
        raise click.ClickException(str(error)) from None
    return assemble(config, args.app)


def _app_args(arguments: dict[str, Any]) -> AppArgs:
    try:
        return AppArgs.model_validate(arguments)
    except ValidationError as error:
        raise from_validation(error, AppArgs) from None


def _check(config: PrismConfig) -> None:
    """Raise ConfigError for what could only fail later, in processes that nobody watches."""
    problems = list(policy_problems(config))
    if problems:
        raise ConfigError(problems)
    if config.engine.kind == "sglang":
        _check_sglang(config)
    config.model.resolved_tokenizer()


def assemble(
    config: PrismConfig, app: str = "default", replica_class: type[Replica] = Replica
) -> serve.Application:
    """Bind ingress, QAS actor and replicas for a config that was checked."""
    config_json = config.to_json()
    replicas = serve.deployment(
        replica_class,
        name=REPLICA_DEPLOYMENT,
        **replica_count(config.replicas),
        max_ongoing_requests=config.replica_max_ongoing_requests,
        ray_actor_options={
            "num_cpus": config.replicas.num_cpus,
            "num_gpus": config.replicas.num_gpus,
        },
        request_router_config=RequestRouterConfig(
            request_router_class="prism_ray.serving.router:DecidedReplicaRouter"
        ),
        graceful_shutdown_timeout_s=config.replicas.drain_s,
        max_surge_percent=config.replicas.surge_percent,
        health_check_period_s=2.0,
    ).bind(config_json)
    qas = DeploymentActorConfig(
        name=QAS_ACTOR,
        actor_class=ray.remote(QasActor),
        init_kwargs={"app": app, "config_json": config_json},
        actor_options={
            "num_cpus": 0,
            "resources": config.scheduler.resources,
            "max_concurrency": 100_000,
        },
    )
    ingress = serve.deployment(
        Ingress,
        name="Ingress",
        num_replicas=config.ingress.count,
        max_ongoing_requests=config.ingress_max_ongoing_requests,
        ray_actor_options={"num_cpus": config.ingress.num_cpus},
        graceful_shutdown_timeout_s=config.ingress.drain_s,
        # New ingresses first: with one of them, there would be none for a while.
        max_surge_percent=100,
        health_check_period_s=2.0,
        deployment_actors=[qas],
    )
    return ingress.bind(config_json, secrets.token_bytes(32), replicas)


def _default_config() -> str:
    gpus = _gpus()
    preset = default_preset(gpus)
    logger.warning("%g GPUs in the Ray cluster: using preset %s", gpus, preset)
    return preset


def _gpus() -> float:
    """GPUs of the Ray cluster that the application will run on.

    ``serve run`` calls the builder before it connects to Ray. So a running cluster is asked and left
    again; if there is none, Ray is about to start one of this machine, whose GPUs are counted.
    """
    if ray.is_initialized():
        return float(ray.cluster_resources().get("GPU", 0.0))
    context = click.get_current_context(silent=True)
    address = context.params.get("address") if context else None
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        return _local_gpus()
    try:
        return float(ray.cluster_resources().get("GPU", 0.0))
    finally:
        ray.shutdown()


def _local_gpus() -> float:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return float(sum(1 for name in visible.split(",") if name.strip() not in ("", "-1")))
    return float(len(list(GPU_DRIVERS.glob("*"))))


def _check_sglang(config: PrismConfig) -> None:
    from importlib.util import find_spec

    if find_spec("sglang") is None:
        expected = 'SGLang, which is not installed: pip install "prism-ray[sglang]"'
        raise ConfigError([Problem("engine.kind", expected, "sglang")])
    config.model.resolved_path()
