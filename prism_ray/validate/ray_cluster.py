"""Checks a Ray cluster config (``ray up``): Ray's own schema, and what Ray checks beyond it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from prism_ray.validate.report import Report, unpinned

PROVIDER_KEYS = {
    "aws": ("region",),
    "gcp": ("region", "availability_zone", "project_id"),
    "azure": ("location", "resource_group"),
}
"""Keys without which Ray's provider cannot start anything."""


def check_cluster(document: Mapping[str, Any], report: Report) -> None:
    """A file for ``ray up``."""
    import jsonschema

    schema = json.loads(
        (resources.files("ray.autoscaler") / "ray-schema.json").read_text(encoding="utf-8")
    )
    provider = document.get("provider")
    local = isinstance(provider, Mapping) and provider.get("type") == "local"
    checked = document
    if local:  # Ray moves this key away before it applies its schema
        checked = {k: v for k, v in document.items() if k != "min_workers"}
    for error in jsonschema.Draft7Validator(schema).iter_errors(checked):
        path = ".".join(map(str, error.absolute_path)) or report.source
        report.refuse(path, f"Ray's schema to hold ({error.message})", error.instance)
    if report.problems:
        return
    _check_provider(document["provider"], report)
    if "available_node_types" in document:
        _check_node_types(document, report)
    _advise(document, report)


def _check_provider(provider: Mapping[str, Any], report: Report) -> None:
    if provider["type"] == "local" and "coordinator_address" not in provider:
        for key, kind in (("head_ip", str), ("worker_ips", list)):
            if not isinstance(provider.get(key), kind):
                expected = "an address" if kind is str else "a list of addresses"
                report.refuse(f"provider.{key}", expected, provider.get(key))
    for key in PROVIDER_KEYS.get(provider["type"], ()):
        if not provider.get(key):
            report.refuse(f"provider.{key}", f"a value: {provider['type']} needs it", None)


def _check_node_types(document: Mapping[str, Any], report: Report) -> None:
    types = document["available_node_types"]
    if document.get("head_node_type") not in types:
        expected = f"one of the node types {', '.join(types)}"
        report.refuse("head_node_type", expected, document.get("head_node_type"))
    least = sum(node.get("min_workers", 0) for node in types.values())
    most = document.get("max_workers", 2)  # Ray's default for every cloud
    if least > most:
        expected = f"at least {least}, the sum of the node types' min_workers"
        report.refuse("max_workers", expected, document.get("max_workers"))


def _advise(document: Mapping[str, Any], report: Report) -> None:
    commands = " ".join(document.get("head_start_ray_commands") or ())
    host = re.search(r"--dashboard-host[= ](\S+)", commands)
    if host and host[1] not in ("127.0.0.1", "localhost"):
        report.notes.append(f"advice: the dashboard on {host[1]} runs code for who can reach it")
    image = (document.get("docker") or {}).get("image")
    if image and unpinned(image):
        report.notes.append(f"advice: image {image} names no version")
