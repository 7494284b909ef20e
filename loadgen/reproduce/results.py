"""What runs on disk say, by setting, arm, rate and seed; refuses to put side by side what differs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.reproduce.kept import RUNS_CSV, asked, read_runs
from loadgen.reproduce.runs import RUNS
from loadgen.sweep.tables import HASHES, Incomparable

Result = Mapping[str, Any]
BySeed = dict[int, Result]


class Results:
    """All runs below a directory: setting -> arm -> requests/s -> seed -> the run's JSON."""

    def __init__(self, runs: Iterable[tuple[str, Result]]) -> None:
        self._by: dict[str, dict[str, dict[float, BySeed]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(dict))
        )
        for setting, result in runs:
            self._by[setting][result["arm"]][result["qps"]][result["seed"]] = result

    @classmethod
    def read(cls, out: Path) -> Results:
        """Every run file of a reproduction, and of ``runs.csv`` those whose files are not there.

        A file that is no run raises ValueError with its name.
        """
        kept = out / RUNS_CSV
        runs: list[tuple[str, Result]] = list(read_runs(kept)) if kept.exists() else []
        for file in sorted((out / RUNS).glob("*/*.json")):
            try:
                result = json.loads(file.read_text(encoding="utf-8"))
                result["arm"], result["qps"], result["seed"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file} is no run of a reproduction: {error!r}") from None
            runs.append((file.parent.name, result))
        return cls(runs)

    def has(self, setting: str, arm: str, qps: float, seed: int, requests: int) -> bool:
        """Whether that very run is there."""
        run = self.at(setting, arm, qps).get(seed)
        return run is not None and asked(run) == requests

    @property
    def count(self) -> int:
        return sum(1 for _ in self.runs())

    def settings(self) -> list[str]:
        return sorted(self._by)

    def arms(self, setting: str) -> list[str]:
        return list(self._by.get(setting, {}))

    def runs(self) -> Iterable[tuple[str, Result]]:
        for setting, arms in self._by.items():
            for rates in arms.values():
                for by_seed in rates.values():
                    for result in by_seed.values():
                        yield setting, result

    def commits(self) -> list[str]:
        return sorted({str(result.get("git_commit")) for _, result in self.runs()})

    def at(self, setting: str, arm: str, qps: float) -> BySeed:
        """By seed; empty where nothing ran."""
        for rate, by_seed in self._by.get(setting, {}).get(arm, {}).items():
            if math.isclose(rate, qps, rel_tol=1e-9):
                return by_seed
        return {}

    def seeds(
        self, setting: str, arms: Sequence[str], rates: Sequence[float], *, compare: bool = True
    ) -> list[int]:
        """Seeds that every arm has at every rate.

        Raises Incomparable if runs of one rate and seed did not serve the same (``compare``).
        """
        common: set[int] | None = None
        for qps in rates:
            cells = {arm: self.at(setting, arm, qps) for arm in arms}
            for by_seed in cells.values():
                common = set(by_seed) if common is None else common & set(by_seed)
            if compare:
                self._check(setting, qps, cells)
        return sorted(common or ())

    def _check(self, setting: str, qps: float, cells: Mapping[str, BySeed]) -> None:
        seen: dict[int, tuple[str, Mapping[str, str]]] = {}
        for arm, by_seed in cells.items():
            for seed, result in by_seed.items():
                other, hashes = seen.setdefault(seed, (arm, result["hashes"]))
                for name in HASHES:
                    if result["hashes"][name] != hashes[name]:
                        raise Incomparable(
                            f"{setting} at {qps:.4g}/s, seed {seed}: {arm!r} and {other!r} differ "
                            f"in their {name}"
                        )
