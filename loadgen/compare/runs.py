"""The runs of a comparison, one JSON each: what is in them, and a directory that is taken up again.

Compares nothing and starts nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadgen.compare.arms import Arm
from loadgen.metrics import spread

FORMAT = 1
RUNS = "runs"


class ComparisonMismatch(ValueError):
    """The directory holds something of the same name that was told something else."""


@dataclass(frozen=True)
class Step:
    """One run: an arm at a share of the knee, ``qps`` requests/s, with the prompts of a seed."""

    arm: Arm
    load: float
    qps: float
    seed: int

    @property
    def file_name(self) -> str:
        return f"{self.arm.name}.load{self.load:g}.seed{self.seed}.json"


@dataclass(frozen=True)
class Served:
    """What a client saw of a request; seconds since the run began."""

    arrival_s: float
    prompt_tokens: int
    cached_tokens: int | None
    first_chunk_s: float | None
    finished_s: float | None
    lateness_s: float
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        """From the scheduled arrival to the first part of the answer."""
        return None if self.first_chunk_s is None else self.first_chunk_s - self.arrival_s


def steps(
    arms: Sequence[Arm], loads: Sequence[float], seeds: Iterable[int], knee_qps: float
) -> Iterator[Step]:
    """All runs: arms innermost, and another arm first each time, so that no arm has the best moments.

    A comparison that is stopped has compared whole seeds.
    """
    turn = 0
    for seed in seeds:
        for load in loads:
            first = turn % len(arms)
            for arm in (*arms[first:], *arms[:first]):
                yield Step(arm, load, load * knee_qps, seed)
            turn += 1


def figures(served: Sequence[Served]) -> dict[str, Any]:
    """What a run comes to. Raises RuntimeError if a request was not answered."""
    failed = [s for s in served if s.error or s.first_chunk_s is None or s.finished_s is None]
    if failed:
        raise RuntimeError(
            f"{len(failed)} of {len(served)} requests were not answered: {failed[0].error}"
        )
    last_arrival_s = max(s.arrival_s for s in served)
    finished_s = [s.finished_s or 0.0 for s in served]
    prompt_tokens = sum(s.prompt_tokens for s in served)
    return {
        "requests": len(served),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": sum(s.cached_tokens or 0 for s in served),
        "hit_rate": sum(s.cached_tokens or 0 for s in served) / prompt_tokens,
        "ttft_s": spread(s.ttft_s for s in served),
        "latency_s": spread(f - s.arrival_s for f, s in zip(finished_s, served, strict=True)),
        "lateness_s": spread(s.lateness_s for s in served),
        "span_s": max(finished_s),
        "throughput_rps": len(served) / max(finished_s),
        "answered_in_arrival_period": sum(f <= last_arrival_s for f in finished_s) / len(served),
    }


def columns(served: Sequence[Served]) -> dict[str, list[Any]]:
    """The requests as columns, times to a tenth of a millisecond: every figure can be made again."""

    def times(values: Iterable[float | None]) -> list[float | None]:
        return [None if v is None else round(v, 4) for v in values]

    return {
        "arrival_s": times(s.arrival_s for s in served),
        "ttft_s": times(s.ttft_s for s in served),
        "finished_s": times(s.finished_s for s in served),
        "prompt_tokens": [s.prompt_tokens for s in served],
        "cached_tokens": [s.cached_tokens for s in served],
    }


def told(step: Step) -> dict[str, Any]:
    """What a run was told, as it stands in its file."""
    arm = asdict(step.arm) | {"options": dict(step.arm.options)}
    return {"arm": arm, "load": step.load, "qps": step.qps, "seed": step.seed}


class RunDirectory:
    """A directory of runs and of what they share. Files appear whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / RUNS).mkdir(parents=True, exist_ok=True)

    def share(self, name: str, value: Mapping[str, Any]) -> None:
        """Keep what all runs share. Raises ComparisonMismatch if it was something else before."""
        kept = self.read(name)
        if kept is None:
            self.write(name, value)
            return
        now = json.loads(json.dumps(value))
        differing = sorted(k for k in {*kept, *now} if kept.get(k) != now.get(k))
        if differing:
            raise ComparisonMismatch(
                f"{self.path / name} says another {', '.join(differing)}: choose another directory"
            )

    def read(self, name: str) -> dict[str, Any] | None:
        """What is kept under a name, None if nothing is."""
        file = self.path / name
        if not file.exists():
            return None
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return value

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        file = self.path / name
        unfinished = file.with_name(file.name + ".unfinished")
        unfinished.write_text(_text(value), encoding="utf-8")
        os.replace(unfinished, file)

    def has(self, step: Step) -> bool:
        """Whether the run is there. Raises ComparisonMismatch if its file was told something else."""
        kept = self.read(f"{RUNS}/{step.file_name}")
        if kept is None:
            return False
        now = json.loads(json.dumps(told(step)))
        differing = sorted(name for name in now if kept.get(name) != now[name])
        if differing:
            raise ComparisonMismatch(
                f"{self.path / RUNS / step.file_name} was run with another {', '.join(differing)}"
            )
        return True

    def result(self, step: Step) -> dict[str, Any]:
        """A run that is there. Raises FileNotFoundError if it is not."""
        kept = self.read(f"{RUNS}/{step.file_name}")
        if kept is None:
            raise FileNotFoundError(step.file_name)
        return kept

    def keep(self, step: Step, result: Mapping[str, Any]) -> None:
        self.write(f"{RUNS}/{step.file_name}", {"format": FORMAT, **told(step), **result})

    def runs(self) -> list[dict[str, Any]]:
        """Every run in the directory, by file name. ValueError if there is none."""
        files = sorted((self.path / RUNS).glob("*.seed*.json"))
        if not files:
            raise ValueError(f"{self.path} holds no runs")
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _text(value: Mapping[str, Any]) -> str:
    """JSON with one line a key: columns of requests stay on a line."""
    lines = (f"{json.dumps(key)}: {json.dumps(part)}" for key, part in value.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
