"""What holds for every test: how hypothesis draws its examples, and who runs beside whom."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# The same source draws the same examples, so that a run says the same twice; `make explore` draws new ones.
# How long an example takes is the machine's business.
slowly = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **slowly)
settings.register_profile("explore", derandomize=False, print_blob=True, **slowly)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where two run at a time, tests with Ray take turns, and no file is divided."""
    for item in items:
        turns = item.get_closest_marker("serve") is not None
        item.add_marker(pytest.mark.xdist_group("ray" if turns else item.location[0]))
