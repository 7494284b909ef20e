"""Checks a Serve config: Serve's own schema, keys that it would ignore, and the config inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from prism_ray.config import PrismConfig
from prism_ray.config_errors import Problem, from_validation
from prism_ray.validate.prism import check_prism_source
from prism_ray.validate.report import Report

IMPORT_PATHS = ("prism_ray:app", "prism_ray.app")


def check_serve(document: Mapping[str, Any], report: Report, prefix: str = "") -> None:
    """A Serve config, on its own or at ``prefix`` (ending in a dot) of another document."""
    from ray.serve.schema import ServeDeploySchema  # Ray takes seconds: only where it is needed

    report.problems += [
        p._replace(path=prefix + p.path) for p in misplaced_keys(document, ServeDeploySchema)
    ]
    try:
        ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        found = from_validation(error, ServeDeploySchema).problems
        report.problems += [p._replace(path=prefix + p.path) for p in found]
        return
    for index, application in enumerate(document["applications"]):
        _check_application(application, report, f"{prefix}applications.{index}")


def _check_application(application: Mapping[str, Any], report: Report, path: str) -> None:
    from prism_ray.application import AppArgs  # Ray too

    import_path = application["import_path"]
    if import_path.split(":")[0].split(".")[0] != "prism_ray":
        report.notes.append(f"unchecked: the args of {import_path}, which is not ours")
        return
    if import_path not in IMPORT_PATHS:
        expected = f"{IMPORT_PATHS[0]}, the application builder"
        report.problems.append(Problem(f"{path}.import_path", expected, import_path))
    args = application.get("args") or {}
    try:
        AppArgs.model_validate(args)
    except ValidationError as error:
        found = from_validation(error, AppArgs).problems
        report.problems += [p._replace(path=f"{path}.args.{p.path}") for p in found]
        return
    if args.get("config") is None:
        report.notes.append("the config is chosen at start: by whether the cluster has a GPU")
        return
    config = check_prism_source(args["config"], report, f"{path}.args.config.")
    if config is not None:
        for index, deployment in enumerate(application.get("deployments") or ()):
            report.problems += _overrides(deployment, config, f"{path}.deployments.{index}")


def _overrides(deployment: Mapping[str, Any], config: PrismConfig, path: str) -> Iterator[Problem]:
    """Serve options of ours that a file overrides so that Serve, not QAS, would queue or refuse."""
    least = {
        "ingress": config.ingress_max_ongoing_requests,
        "replica": config.replica_max_ongoing_requests,
    }
    name = str(deployment["name"])
    if name.lower() not in least:
        yield Problem(f"{path}.name", "a deployment of prism_ray: Ingress or Replica", name)
        return
    minimum = least[name.lower()]
    ongoing = deployment.get("max_ongoing_requests", minimum)
    if ongoing < minimum:
        expected = f"at least {minimum:,} (from the limits), or Serve queues out of our sight"
        yield Problem(f"{path}.max_ongoing_requests", expected, ongoing)
    if name.lower() == "replica":
        for key, value in deployment.items():
            if key == "autoscaling_config" or (key == "num_replicas" and value == "auto"):
                expected = "replicas.autoscaling in args.config: Serve's own rule knows no window"
                yield Problem(f"{path}.{key}", expected, value)
    queued = deployment.get("max_queued_requests", -1)
    if queued != -1:
        expected = "-1: limits.queue_requests bounds the queue"
        yield Problem(f"{path}.max_queued_requests", expected, queued)


def misplaced_keys(
    document: object, model: type[BaseModel], path: tuple[str, ...] = ()
) -> Iterator[Problem]:
    """Keys that a lenient pydantic model would ignore, anywhere below a document."""
    if not isinstance(document, Mapping):
        return
    for key, value in document.items():
        here = (*path, str(key))
        if key not in model.model_fields:
            expected = f"one of the keys {', '.join(sorted(model.model_fields))}"
            yield Problem(".".join(here), expected, value)
            continue
        inner = _model_in(model.model_fields[key].annotation)
        if inner is None:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from misplaced_keys(item, inner, (*here, str(index)))
        else:
            yield from misplaced_keys(value, inner, here)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
