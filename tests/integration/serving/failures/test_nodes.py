"""A node leaves and returns under load: two Ray nodes in network namespaces of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from prism_ray.application import SERVE_ENVIRONMENT
from tests.faults.load import STREAMS_END
from tests.faults.nodes import NotPermitted, TwoNodes, run_in

pytestmark = [pytest.mark.serve, pytest.mark.timeout(900)]

DRIVER = "tests.integration.serving.failures.node_driver"
REPOSITORY = Path(__file__).parents[4]
WAYS = ("cut", "killed", *(["lost"] if os.environ.get("PRISM_CHAOS") == "1" else []))
"""``node_driver`` says what they are; the last takes minutes, and belongs to the whole form of chaos."""


def test_a_node_that_leaves_takes_only_begun_answers_and_serves_again_when_it_returns(
    no_serve: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SERVE_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "results.json"
    try:
        with TwoNodes() as nodes:
            arguments = ("-m", DRIVER, nodes.head, nodes.node, str(out), *WAYS)
            assert run_in(nodes.head, *arguments, cwd=REPOSITORY, timeout_s=600) == 0
    except NotPermitted as error:
        pytest.skip(f"no network namespaces: {error}")
    results: dict[str, dict[str, Any]] = json.loads(out.read_text())
    assert set(results) == set(WAYS)
    for how, result in results.items():
        print(f"node {how}: {result}")
        assert result["sent"] == sum(result["seen"].values())
        lost = {end: count for end, count in result["seen"].items() if end != "answered"}
        if how == "cut":
            assert not lost, "a few seconds without a network are only late"
        else:
            assert set(lost) <= STREAMS_END
            assert sum(lost.values()) <= 8, "no more than ran there"
