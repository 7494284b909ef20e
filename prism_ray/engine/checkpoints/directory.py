"""A model directory on disk: where models live, when one is complete, how one appears at once.

What is inside a model directory is written by the modules beside this one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODELS_DIR_VARIABLE = "PRISM_MODELS_DIR"


class CheckpointUnavailable(RuntimeError):
    """A model directory cannot be made; the message says why and what to do."""


def models_dir() -> Path:
    """The directory that holds all models: ``$PRISM_MODELS_DIR`` or ``~/.cache/prism_ray/models``."""
    configured = os.environ.get(MODELS_DIR_VARIABLE)
    if configured:
        return Path(configured).expanduser()
    return Path.home() / ".cache" / "prism_ray" / "models"


def is_checkpoint(path: Path) -> bool:
    """Whether ``path`` holds a configuration, weights and a tokenizer."""
    return (
        (path / "config.json").is_file()
        and (path / "tokenizer.json").is_file()
        and any(path.glob("*.safetensors"))
    )


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """Yield a scratch directory that becomes ``out`` when the block ends without an error.

    Readers see a whole model or none: the scratch directory lies beside ``out`` and is renamed. On an
    error nothing is left. Raises CheckpointUnavailable if ``out`` holds something that is no model;
    when another process finished the same model first, its copy stays.
    """
    if out.exists() and not _is_empty_dir(out) and not is_checkpoint(out):
        raise CheckpointUnavailable(
            f"{out} exists and is not a model directory; remove it, or choose another place"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield scratch
        _share(scratch)
        try:
            scratch.rename(out)
        except OSError:
            if not is_checkpoint(out):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _share(scratch: Path) -> None:
    """Let every user read the model: mkdtemp and safetensors make what they write private."""
    scratch.chmod(0o755)
    for file in scratch.iterdir():
        file.chmod(0o644)


def _is_empty_dir(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
