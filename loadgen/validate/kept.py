"""What has been compared so far, one file an arm: a validation can be stopped and taken up again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadgen.validate.agreement import Arm, ReplayedRow, SimulatedRow


class OtherValidation(ValueError):
    """The directory holds arms that were told something else; the message says what."""


@dataclass(frozen=True)
class Compared:
    """One arm, all its seeds: (a), (b), and what its engine's steps cost (JSON-ready)."""

    replayed: tuple[ReplayedRow, ...]
    simulated: SimulatedRow
    fit: Mapping[str, Any]

    @property
    def arm(self) -> Arm:
        return self.simulated.policy, self.simulated.retention


class KeptArms:
    """A directory of compared arms. ``told`` is what all of them must have been told alike.

    ``noted`` is written beside it and may differ (the commit, the machine's load).
    """

    def __init__(
        self, directory: Path, told: Mapping[str, Any], noted: Mapping[str, Any] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._told = json.loads(json.dumps(told))
        self._noted = dict(noted or {})

    def get(self, arm: Arm) -> Compared | None:
        """What is kept of an arm. Raises OtherValidation if it was told something else."""
        file = self._file(arm)
        if not file.exists():
            return None
        kept = json.loads(file.read_text(encoding="utf-8"))
        differing = sorted(n for n in self._told if kept["told"].get(n) != self._told[n])
        if differing:
            raise OtherValidation(
                f"{file} was run with another {', '.join(differing)}: choose another directory, "
                "or delete the file"
            )
        replayed = tuple(ReplayedRow(**_tuples(row)) for row in kept["replayed"])
        return Compared(replayed, SimulatedRow(**_tuples(kept["simulated"])), kept["fit"])

    def put(self, compared: Compared) -> None:
        """Keep an arm; its file appears whole or not at all."""
        file = self._file(compared.arm)
        content = {
            "told": self._told,
            **self._noted,
            "replayed": [asdict(row) for row in compared.replayed],
            "simulated": asdict(compared.simulated),
            "fit": dict(compared.fit),
        }
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, file)

    def _file(self, arm: Arm) -> Path:
        return self._directory / f"{arm[0]}-{arm[1]}.json"


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it was before JSON made lists of its tuples."""
    return {
        name: tuple(tuple(pair) for pair in value) if isinstance(value, list) else value
        for name, value in row.items()
    }
