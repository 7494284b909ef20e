"""Where public data sets lie on this machine, and how one is had from the Hugging Face hub.

Formats belong to the loaders; here are paths and clear errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA_VARIABLE = "PRISM_SHARED_DATA"


class DataMissing(ValueError):
    """A data set is not where it was looked for; the message names the path and what to do."""


def data_dir() -> Path:
    """``$PRISM_SHARED_DATA``, else ``shared/data`` beside the repository."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get(DATA_VARIABLE, beside))


def data_path(name: str, path: str | os.PathLike[str] | None = None) -> Path:
    """The file or directory ``name`` of the data directory, or ``path`` if one is given.

    Raises DataMissing if it is not there.
    """
    found = data_dir() / name if path is None else Path(path)
    if not found.exists():
        raise DataMissing(
            f"no data at {found}; set {DATA_VARIABLE} to the directory that holds {name}, "
            f"or give the trace's own path option (docs/traces.md lists sources)"
        )
    return found


def version(path: Path) -> tuple[int, int]:
    """Changes when the file does; for what is remembered of a file's contents."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def read_json(path: Path) -> Any:
    """The value in ``path``. ValueError with the path if it is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no JSON: {error}") from error


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file. ValueError with path and line number for another line."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: no JSON: {error}") from error
            if not isinstance(value, dict):
                raise ValueError(f"{path}:{number}: expected an object")
            yield value


def from_hub(dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
    """All rows of a split of a data set on the Hugging Face hub, through ``datasets``.

    Raises DataMissing, with what ``datasets`` said, if the package or the network is not there.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataMissing(f"{dataset}: install `datasets` to fetch it from the hub") from error
    try:
        rows = datasets.load_dataset(dataset, config, split=split)
        return [dict(row) for row in rows]
    except Exception as error:  # the package raises what its transports raise
        raise DataMissing(f"could not fetch {dataset} from the hub: {error}") from error
