"""Which commit of this repository runs, for the figures that it writes. Reads git and nothing else."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def git_commit() -> str | None:
    """The commit of the checkout that runs, with "-dirty" where files differ; None outside of one."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changed else head


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
