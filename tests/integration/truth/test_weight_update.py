"""New weights begin a new incarnation of the cache: nothing that the old ones computed is used or told."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from prism_ray import cache_news
from prism_ray.cache_news import CacheNews
from prism_ray.dispatch import ExactResidency, ResidencyState
from prism_ray.engine.sglang_events import EVENTS_ADDRESS_VARIABLE, decode, events_address
from prism_ray.engine.sglang_launch import launch_environment

from .following import retrieval

REPOSITORY = Path(__file__).parents[3]
PROGRAM = "tests.integration.truth.weight_update"

pytestmark = pytest.mark.real_engine


def test_new_weights_from_disk_begin_a_new_and_empty_incarnation(
    random_tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    address = events_address(tmp_path_factory.mktemp("e"))
    context = zmq.Context()
    reports = context.socket(zmq.PULL)
    reports.bind(address)
    environment = launch_environment({EVENTS_ADDRESS_VARIABLE: address}, "dart", {}, 1)
    try:
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", PROGRAM, str(random_tiny)],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        news = heard(reports)
    finally:
        context.destroy(linger=0)
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("CACHED"))
    first, second, third, fourth = json.loads(line.removeprefix("CACHED"))
    assert (first, third) == (0, 0)  # what other weights computed is no prefix
    assert second == fourth > 60
    assert [each.incarnation for each in news] == sorted(each.incarnation for each in news)
    assert {each.incarnation for each in news} == {0, 1}
    begun = next(each for each in news if each.incarnation == 1)
    assert (begun.sequence, begun.spans) == (0, ())
    view = ExactResidency()
    for each in news:
        view.apply(each)
        if each is begun:
            assert view.tokens == 0
    assert view.state is ResidencyState.EXACT
    assert view.match(retrieval(random.Random(1)).path).cached_tokens > 60


def heard(reports: zmq.Socket[bytes]) -> list[CacheNews]:
    """What came before the engine ended."""
    messages = []
    while reports.poll(500):
        messages.append(decode(reports.recv()).cache)
    return [cache_news.decode(message) for message in messages if message]
