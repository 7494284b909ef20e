"""What ``prism-ray validate`` checks in a file before anything is started. Nothing here prints.

YAML documents are told apart by their keys, Redis settings and Dockerfiles by their names. Serve
ignores a misplaced key without a word; here it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from prism_ray.config import ConfigError, PrismConfig
from prism_ray.config_errors import Problem
from prism_ray.config_files import resolve
from prism_ray.validate.compose import check_compose
from prism_ray.validate.dockerfile import check_dockerfile
from prism_ray.validate.monitoring import (
    check_dashboard,
    check_prometheus,
    check_provisioning,
)
from prism_ray.validate.prism import check_prism
from prism_ray.validate.ray_cluster import check_cluster
from prism_ray.validate.rayservice import check_rayservice
from prism_ray.validate.redis_settings import check_redis_settings
from prism_ray.validate.report import Kind, Report
from prism_ray.validate.serve import check_serve

__all__ = ["Kind", "Report", "kind_of", "validate", "validate_document"]

_CHECKS: dict[Kind, Callable[[Mapping[str, Any], Report], None]] = {
    Kind.PRISM: check_prism,
    Kind.SERVE: check_serve,
    Kind.CLUSTER: check_cluster,
    Kind.RAYSERVICE: check_rayservice,
    Kind.COMPOSE: check_compose,
    Kind.PROMETHEUS: check_prometheus,
    Kind.GRAFANA: check_provisioning,
    Kind.DASHBOARD: check_dashboard,
}
_BY_KEY = {
    "scrape_configs": Kind.PROMETHEUS,
    "datasources": Kind.GRAFANA,
    "providers": Kind.GRAFANA,
    "panels": Kind.DASHBOARD,
}
_TEXT_CHECKS: dict[Kind, Callable[[str, Report], None]] = {
    Kind.REDIS: check_redis_settings,
    Kind.DOCKERFILE: check_dockerfile,
}


def validate(source: str) -> list[Report]:
    """One report for each document in a file (or preset); an unreadable file is a report too."""
    try:
        path = resolve(source)
        text = path.read_text(encoding="utf-8")
        if (kind := _text_kind(path)) is not None:
            report = Report(source, kind)
            _TEXT_CHECKS[kind](text, report)
            return [report]
        documents = [d for d in yaml.safe_load_all(text) if d]
    except ConfigError as error:
        return [Report(source, Kind.UNKNOWN, list(error.problems))]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return [Report(source, Kind.UNKNOWN, [Problem(source, "readable YAML", str(error))])]
    if not documents:
        return [Report(source, Kind.UNKNOWN, [Problem(source, "a mapping", None)])]
    many = len(documents) > 1
    return [
        validate_document(document, f"{source}#{number}" if many else source)
        for number, document in enumerate(documents, start=1)
    ]


def validate_document(document: Any, source: str) -> Report:
    """Check one parsed document as what it is taken for."""
    report = Report(source, kind_of(document))
    check = _CHECKS.get(report.kind)
    if check is not None:
        check(document, report)
    elif report.kind is Kind.OTHER_KUBERNETES:
        report.notes.append(f"unchecked: Kubernetes objects of kind {document['kind']}")
    else:
        expected = (
            "a prism_ray, Serve, Ray cluster, RayService, compose, Prometheus or Grafana file"
        )
        found = sorted(map(str, document)) if isinstance(document, Mapping) else document
        report.refuse(source, expected, found)
    return report


def kind_of(document: object) -> Kind:
    """What a YAML document is, by the keys that only one kind has."""
    if not isinstance(document, Mapping):
        return Kind.UNKNOWN
    if "apiVersion" in document and "kind" in document:
        return Kind.RAYSERVICE if document["kind"] == "RayService" else Kind.OTHER_KUBERNETES
    if "applications" in document:
        return Kind.SERVE
    if "cluster_name" in document or "provider" in document:
        return Kind.CLUSTER
    if "services" in document:
        return Kind.COMPOSE
    for key, kind in _BY_KEY.items():
        if key in document:
            return kind
    if document.keys() & {"extends", *PrismConfig.model_fields}:
        return Kind.PRISM
    return Kind.UNKNOWN


def _text_kind(path: Path) -> Kind | None:
    if path.suffix == ".conf":
        return Kind.REDIS
    if path.name.split(".")[0] == "Dockerfile" or path.suffix == ".Dockerfile":
        return Kind.DOCKERFILE
    return None
