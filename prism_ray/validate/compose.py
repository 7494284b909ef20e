"""Checks a compose file: its shape, and that what services refer to is there. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prism_ray.validate.report import Report, unpinned

TOP_LEVEL = ("configs", "include", "name", "networks", "secrets", "services", "version", "volumes")


def check_compose(document: Mapping[str, Any], report: Report) -> None:
    """A file for ``docker compose``."""
    for key in document:
        if key not in TOP_LEVEL and not str(key).startswith("x-"):
            report.refuse(str(key), f"one of the keys {', '.join(TOP_LEVEL)}, x-…", document[key])
    services = document["services"]
    if not isinstance(services, Mapping) or not services:
        report.refuse("services", "a mapping of services", services)
        return
    for name, service in services.items():
        _check_service(service, f"services.{name}", document, report)


def _check_service(service: object, path: str, document: Mapping[str, Any], report: Report) -> None:
    if not isinstance(service, Mapping) or not {"image", "build"} & service.keys():
        report.refuse(path, "a mapping with an image or a build", service)
        return
    image = service.get("image")
    if image and "build" not in service and unpinned(image):
        report.notes.append(f"advice: image {image} names no version")
    for key, reference in _references(service):
        known = document.get("services" if key == "depends_on" else key) or {}
        if reference not in known:
            expected = f"one of {', '.join(known)}" if known else f"{key} at the top of the file"
            report.refuse(f"{path}.{key}", expected, reference)


def _references(service: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names that must be at the top of the file, each with the key it is under."""
    for key in ("depends_on", "networks"):
        for name in service.get(key) or ():
            if name != "default":
                yield key, name
    for key in ("configs", "secrets"):
        for item in service.get(key) or ():
            yield key, item if isinstance(item, str) else item["source"]
    for volume in service.get("volumes") or ():
        if isinstance(volume, Mapping):
            named = volume.get("source", "") if volume.get("type") == "volume" else ""
        else:
            named = volume.split(":")[0] if ":" in volume else ""
        if named and named[0] not in "./~$":
            yield "volumes", named
