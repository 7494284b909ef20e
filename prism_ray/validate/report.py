"""What a check of a file comes to: what it was taken for, what is wrong, what was left unchecked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from prism_ray.config import PrismConfig
from prism_ray.config_errors import Problem


class Kind(StrEnum):
    """What a document was taken for."""

    PRISM = "prism_ray config"
    SERVE = "Serve config"
    CLUSTER = "Ray cluster config"
    RAYSERVICE = "KubeRay RayService"
    OTHER_KUBERNETES = "other Kubernetes object"
    COMPOSE = "compose file"
    PROMETHEUS = "Prometheus configuration"
    GRAFANA = "Grafana provisioning"
    DASHBOARD = "Grafana dashboard"
    REDIS = "Redis settings"
    DOCKERFILE = "Dockerfile"
    UNKNOWN = "unknown"


@dataclass
class Report:
    """Findings about one document; ``configs`` are the PrismConfigs that it leads to, by path."""

    source: str
    kind: Kind
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    configs: dict[str, PrismConfig] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    def refuse(self, path: str, expected: str, found: object) -> None:
        """Add a problem at a dotted path."""
        self.problems.append(Problem(path, expected, found))


def unpinned(image: str) -> bool:
    """Whether an image's name leaves open which image it is: no digest, no tag, or ``latest``."""
    if "@sha256:" in image:
        return False
    _, colon, tag = image.rsplit("/", 1)[-1].partition(":")
    return not colon or tag == "latest"
