"""The key space of the telemetry store: ``{namespace}:{app}:…``. No values, no client text, no server."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

STREAM_FIELD = "d"
"""The one field of an entry of the decisions' stream: an encoded decision."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one application; ValueError for a name that is not a plain word.

    ``namespace`` begins every key, for a server that others use too.
    """

    app: str
    namespace: str = "prism"

    def __post_init__(self) -> None:
        _check("application", self.app)
        _check("namespace", self.namespace)

    @property
    def heartbeat(self) -> str:
        """Wall time of the writer's last sign of life."""
        return f"{self.namespace}:{self.app}:heartbeat"

    @property
    def replicas(self) -> str:
        """Sorted set of replica names by wall time of the last snapshot: readers need no SCAN."""
        return f"{self.namespace}:{self.app}:replicas"

    @property
    def segments(self) -> str:
        return f"{self.namespace}:{self.app}:segments"

    @property
    def decisions(self) -> str:
        return f"{self.namespace}:{self.app}:decisions"

    def replica(self, name: str) -> str:
        """``name`` is the replica's own, given by the system, never by a client."""
        return f"{self.namespace}:{self.app}:replica:{name}"

    def checkpoint(self, name: str) -> str:
        return f"{self.namespace}:{self.app}:checkpoint:{_check('checkpoint', name)}"


def _check(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{kind} name {name!r} must match {_NAME.pattern}")
    return name
