"""Parameters that do not exist or make no sense are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prism_ray.policies import make_scheduler
from prism_ray.qas import QasParams


def test_the_defaults_are_the_papers() -> None:
    params = QasParams()
    assert (params.w_active, params.w_next, params.w_global) == (1e6, 1e5, 1.0)
    assert (params.f_front, params.kappa, params.q_cold) == (3, 1, 2)
    assert (params.alpha_size, params.beta_util) == (1.0, 0.5)


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(ValueError, match="'q_hot'"):
        make_scheduler("qas", {"q_hot": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("w_active", "1e6"),
        ("w_next", -1.0),
        ("w_global", math.nan),
        ("alpha_size", True),
        ("beta_util", None),
        ("f_front", -1),
        ("f_front", 2.0),
        ("kappa", 0),
        ("q_cold", -1),
        ("q_cold", 33),
        ("batch_max", 0),
        ("batch_max", True),
        ("window_max", 0),
        ("window_max", 10.5),
        ("table_rows_max", -1),
        ("priority", "strict"),
        ("bucket_segments", ["union"]),
        ("hot_batch", ""),
        ("front_order", "rank"),
        ("realign", "never"),
        ("lanes", 2),
        ("table_taken", "during"),
        ("pioneer", 1),
        ("predict_next", "yes"),
    ],
)
def test_an_ill_typed_or_impossible_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        make_scheduler("qas", {name: value})


def test_whole_numbers_serve_as_weights_and_none_as_no_window() -> None:
    params = QasParams.from_mapping({"w_active": 3, "window_max": None})
    assert params.w_active == 3
    assert params.window_max is None


def test_lexicographic_digits_need_a_batch_that_fits_them() -> None:
    with pytest.raises(ValueError, match="batch_max"):
        QasParams(priority="lexicographic", batch_max=2048)
