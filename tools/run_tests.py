"""Run all tests, two at a time; failures of tests with real processes get a second try, alone.

Such tests race on a busy machine, so a failure counts when it repeats, from a fresh start. Unit tests
have one try, and so has everything where more than a few fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LAST_FAILED = REPOSITORY / ".pytest_cache" / "v" / "cache" / "lastfailed"
REAL_PROCESSES = ("tests/integration/", "tests/chaos/")
SECOND_TRIES_MAX = 5
TWO_AT_A_TIME = ("--numprocesses=2",)
"""Tests with a Ray of their own wait more than they compute; who may run beside whom: tests/conftest.py."""
TESTS_FAILED = 1
"""pytest's exit code when tests failed, and nothing worse happened."""


def failed_tests(last_failed: Path) -> list[str]:
    """What pytest remembers of its last run, by node id."""
    return sorted(json.loads(last_failed.read_text(encoding="utf-8")))


def deserve_another(failed: list[str]) -> bool:
    """Whether these failures may be chance; a file that can't be read, without a test's name, is not."""
    return 0 < len(failed) <= SECOND_TRIES_MAX and all(
        name.startswith(REAL_PROCESSES) and "::" in name for name in failed
    )


def main(arguments: list[str]) -> int:
    """pytest's exit code, of the second try if there was one."""
    pytest = [sys.executable, "-m", "pytest", *arguments]
    code = subprocess.run([*pytest, *TWO_AT_A_TIME], cwd=REPOSITORY, check=False).returncode
    if code != TESTS_FAILED or not deserve_another(failed := failed_tests(LAST_FAILED)):
        return code
    print("\nA second try, of tests with real processes:", *failed, sep="\n  ", flush=True)
    return subprocess.run([*pytest, "--last-failed"], cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
