"""The file of an engine's recorded steps, read run by run. What is in it: ``prism_ray.engine``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from prism_ray.engine.sglang_steps import STEPS_FILE_VARIABLE, Recorded, read_steps


class StepsFile:
    """The file that an engine records into, read run by run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = 0
        path.touch()

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the engine that is to record here."""
        return {STEPS_FILE_VARIABLE: str(self.path)}

    def take(self) -> tuple[Recorded, ...]:
        """What was recorded since the last call."""
        records = tuple(read_steps(self.path))
        new, self._seen = records[self._seen :], len(records)
        return new


@contextmanager
def steps_file() -> Iterator[StepsFile]:
    """A file in a directory of its own, gone when the context ends."""
    with TemporaryDirectory(prefix="prism-steps-") as scratch:
        yield StepsFile(Path(scratch) / "steps.jsonl")
