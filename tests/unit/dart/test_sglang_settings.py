"""The plugin's settings by environment; nothing of SGLang is needed to refuse them."""

from __future__ import annotations

import pytest

from prism_ray.dart.sglang_plugin import settings


def test_without_settings_the_strategy_is_dart():
    assert settings({}) == ("dart", {})


def test_strategy_and_protection_come_by_environment():
    given = {"PRISM_RETENTION": "next-use", "PRISM_RETENTION_PARAMS": '{"protect_anchors": 8}'}
    assert settings(given) == ("next-use", {"protect_anchors": 8})
    given = {"PRISM_RETENTION_PARAMS": '{"anchor_rank": "demand"}'}
    assert settings(given) == ("dart", {"anchor_rank": "demand"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"PRISM_RETENTION": "mru"}, "PRISM_RETENTION='mru': one of "),
        ({"PRISM_RETENTION": "belady"}, "one of "),
        ({"PRISM_RETENTION_PARAMS": "["}, "PRISM_RETENTION_PARAMS"),
        ({"PRISM_RETENTION_PARAMS": '{"f": 1}'}, "protect_anchors, protect_share"),
        ({"PRISM_RETENTION_PARAMS": '{"protect_share": "x"}'}, "PRISM_RETENTION_PARAMS"),
        ({"PRISM_RETENTION_PARAMS": '{"protect_share": null}'}, "PRISM_RETENTION_PARAMS"),
        ({"PRISM_RETENTION_PARAMS": '{"protect_share": 2}'}, "PRISM_RETENTION_PARAMS"),
        ({"PRISM_RETENTION_PARAMS": '{"anchor_rank": "size"}'}, "expected paths or demand"),
    ],
)
def test_wrong_settings_are_refused_by_the_name_of_their_variable(given, says):
    with pytest.raises(ValueError, match=says.replace("[", "\\[")):
        settings(given)
