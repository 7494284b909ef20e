"""What holds for every test: how hypothesis draws its examples, and who runs beside whom."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The same source draws the same examples, so that a run says the same twice; `make explore` draws new ones.
# How long an example takes is the machine's business.
slowly = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **slowly)
settings.register_profile("explore", derandomize=False, print_blob=True, **slowly)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


WITH_RAY = (
    "tests/chaos/",
    "tests/integration/serving/",
    "tests/integration/test_cluster_launch.py",
    "tests/integration/test_serve_command.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several run at a time, tests with Ray take turns, and no file is divided."""
    from xdist.scheduler import LoadScopeScheduling

    class InTurn(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "ray" if file.startswith(WITH_RAY) else file

    return InTurn(config, log)
