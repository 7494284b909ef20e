"""What holds in Serve's default mode holds behind HAProxy, in which the application is delivered.

Serve reads its mode when it is imported: the chosen tests run in a pytest of their own. The mode
``throughput`` is run by hand (docs/serve-modes.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]

pytestmark = [
    pytest.mark.serve,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(sys.platform != "linux", reason="HAProxy comes with Ray on Linux"),
]

TESTS = (
    "test_order.py::test_the_engine_admits_in_the_planned_order[simulated]",
    "test_credit.py",
    "test_aborts.py",
    "test_slow_readers.py",
)
LEFT_OUT = "whole and 3 or stream and 1"
"""Half of the ways to ask are enough here; the stages are what differs."""


def test_order_credit_aborts_and_slow_readers_behind_haproxy(no_serve: None) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"PRISM_TEST_SERVE_MODE": "haproxy", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--durations=8"]
    command += ["-p", "no:cacheprovider", "-k", f"not ({LEFT_OUT})"]
    command += [str(HERE / test) for test in TESTS]
    # From the repository, as everybody runs pytest: Serve's replicas unpickle what tests define,
    # and Ray gives them the driver's import path, in which `-m pytest` puts this directory.
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-20_000:]
    summary = done.stdout.splitlines()[-1]
    print(summary)
    assert "skipped" not in summary, done.stdout[-4000:]
