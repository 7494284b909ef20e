"""Checks a KubeRay RayService: the Serve config inside, and the mistakes that its schema allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import yaml

from prism_ray.validate.report import Report, unpinned
from prism_ray.validate.serve import check_serve

CLUSTER = "spec.rayClusterConfig"
GCS_DATABASE = 0
"""Ray's GCS has no setting for another one."""


def check_rayservice(document: Mapping[str, Any], report: Report) -> None:
    """A RayService; what is not named here is for the operator to check."""
    spec = document.get("spec") or {}
    _check_serve_text(spec.get("serveConfigV2"), report)
    cluster = spec.get("rayClusterConfig")
    if not isinstance(cluster, Mapping):
        report.refuse(CLUSTER, "a mapping", cluster)
        return
    if cluster.get("rayVersion") != version("ray"):
        expected = f"{version('ray')}, the version that prism_ray is tied to"
        report.refuse(f"{CLUSTER}.rayVersion", expected, cluster.get("rayVersion"))
    for path, group in _groups(cluster):
        _check_group(group, path, report)
    if (options := cluster.get("gcsFaultToleranceOptions")) is None:
        report.notes.append(
            "advice: without gcsFaultToleranceOptions the head's death ends serving"
        )
    else:
        _check_fault_tolerance(options, report)


def _check_serve_text(text: object, report: Report) -> None:
    path = "spec.serveConfigV2"
    try:
        serve = yaml.safe_load(text) if isinstance(text, str) else None
    except yaml.YAMLError as error:
        report.refuse(path, "readable YAML", str(error))
        return
    if isinstance(serve, Mapping):
        check_serve(serve, report, f"{path}.")
    else:
        report.refuse(path, "a Serve config as a block of text", text)


def _groups(cluster: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield f"{CLUSTER}.headGroupSpec", cluster.get("headGroupSpec") or {}
    for index, group in enumerate(cluster.get("workerGroupSpecs") or ()):
        yield f"{CLUSTER}.workerGroupSpecs.{index}", group


def _check_group(group: Mapping[str, Any], path: str, report: Report) -> None:
    for key, value in (group.get("rayStartParams") or {}).items():
        if not isinstance(value, str):
            report.refuse(f"{path}.rayStartParams.{key}", "text: write it in quotes", value)
    pod = (group.get("template") or {}).get("spec") or {}
    containers = pod.get("containers")
    if not containers:
        report.refuse(f"{path}.template.spec.containers", "at least one container", containers)
        return
    for index, container in enumerate(containers):
        image = container.get("image")
        if not image:
            here = f"{path}.template.spec.containers.{index}.image"
            report.refuse(here, "the name of an image", image)
        elif unpinned(image):
            report.notes.append(f"advice: image {image} names no version")


def _check_fault_tolerance(options: Mapping[str, Any], report: Report) -> None:
    path = f"{CLUSTER}.gcsFaultToleranceOptions"
    if options.get("backend") == "rocksdb":
        return
    address = options.get("redisAddress")
    if not address:
        report.refuse(f"{path}.redisAddress", "HOST:PORT of a Redis", address)
        return
    password = options.get("redisPassword") or {}
    if "value" in password:
        expected = "redisPassword.valueFrom.secretKeyRef: a password has no place in a file"
        report.refuse(f"{path}.redisPassword.value", expected, "…")
    if "externalStorageNamespace" in options:
        expected = "no value: a service's old and new cluster would share one during an upgrade"
        found = options["externalStorageNamespace"]
        report.refuse(f"{path}.externalStorageNamespace", expected, found)
    for where, config in report.configs.items():
        if config.redis.url and _same_database(config.redis.url, address):
            expected = f"another database than {GCS_DATABASE}, which is GCS's there (…/1)"
            report.refuse(f"{where}.redis.url", expected, config.redis.url)


def _same_database(url: str, gcs_address: str) -> bool:
    telemetry = urlsplit(url)
    gcs = urlsplit(gcs_address if "//" in gcs_address else f"//{gcs_address}")
    same_server = telemetry.hostname == gcs.hostname and (telemetry.port or 6379) == gcs.port
    return same_server and telemetry.path.strip("/") in ("", str(GCS_DATABASE))
