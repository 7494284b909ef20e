"""What holds for every test: how hypothesis draws, and which tests get a second try."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples each time: a change is judged by what it changes. `make explore` draws new ones.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

HERE = Path(__file__).parent
REAL_PROCESSES = (HERE / "integration", HERE / "chaos")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes race on a busy machine: a failure counts when it repeats.

    The first one stays in the output, marked RERUN, with its traceback.
    """
    for item in items:
        if any(item.path.is_relative_to(room) for room in REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=1))
