"""The same input gives the same picks and tables, in every process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from loadgen.traces.zipf_hotspot import ZipfHotspot
from prism_ray.qas import Qas

from .scenes import NoCache, take

ROOT = Path(__file__).parents[3]
RUN = "from tests.unit.qas.test_determinism import fingerprint; print(fingerprint(**{params!r}))"
PARAMS: list[dict[str, Any]] = [
    {},
    {"kappa": 2, "window_max": 50, "table_rows_max": 20},
    {"hot_batch": "running", "bucket_segments": "signature", "pioneer": True},
]


def fingerprint(**params: Any) -> str:
    """Digest of all that a scheduler says over a fixed life with two replicas."""
    scheduler = Qas(params)
    tickets = ZipfHotspot(7, passages=80, hot_passages=8).tickets()
    digest = hashlib.sha256()
    active: list[str] = []
    for ticket in islice(tickets, 150):
        scheduler.add(ticket)
    for step in range(60):
        for ticket in islice(tickets, 6):
            scheduler.add(ticket)
        opened = scheduler.open_round({"x": NoCache(), "y": NoCache()})
        for replica in ("x", "y"):
            for pick in take(opened, 3, replica):
                digest.update(repr((replica, pick)).encode())
                active.append(pick.ticket.request_id)
        digest.update(repr(sorted(opened.close().items())).encode())
        for _ in range(5):
            scheduler.finish(active.pop(step % len(active)))
    digest.update(repr(scheduler.describe()).encode())
    return digest.hexdigest()


@pytest.mark.parametrize("params", PARAMS)
def test_two_lives_are_the_same(params: dict[str, Any]) -> None:
    assert fingerprint(**params) == fingerprint(**params)


@pytest.mark.parametrize("params", PARAMS)
def test_another_hash_seed_changes_nothing(params: dict[str, Any]) -> None:
    answers = set()
    for seed in ("0", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", RUN.format(params=params)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(done.stdout.strip())
    assert answers == {fingerprint(**params)}
