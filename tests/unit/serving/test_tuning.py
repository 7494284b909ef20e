from __future__ import annotations

from typing import Any

import pytest

from prism_ray.config import PrismConfig
from prism_ray.config_errors import ConfigError
from prism_ray.serving.tuning import retuned

DEPLOYED = PrismConfig.load("simulated")


def test_what_is_left_out_again_goes_back_to_its_deployed_value() -> None:
    tuned = retuned(DEPLOYED, {"limits": {"n": 2}, "scheduler": {"round_interval_s": 0.1}})
    assert (tuned.limits.n, tuned.scheduler.round_interval_s) == (2, 0.1)
    assert retuned(DEPLOYED, {}) == DEPLOYED


@pytest.mark.parametrize(
    ("user_config", "path"),
    [
        ({"colour": 1}, "colour"),
        ({"limits": {"colour": 1}}, r"limits\.colour"),
        ({"limits": 3}, "limits"),
        ({"limits": {"qas_timeout_s": 2.0}}, r"limits\.qas_timeout_s"),
        ({"limits": {"n": "many"}}, r"limits\.n"),
        ({"limits": {"max_tokens": 1}}, r"limits\.default_max_tokens"),
        ({"scheduler": {"policy": "fcfs"}}, r"scheduler\.policy"),
        ({"model": {"name": "other"}}, "model"),
        (
            {"limits": {"queue_requests": DEPLOYED.limits.queue_requests + 1}},
            r"limits\.queue_requests",
        ),
    ],
)
def test_what_cannot_be_changed_while_running_is_refused_with_its_path(
    user_config: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError, match=path):
        retuned(DEPLOYED, user_config)
