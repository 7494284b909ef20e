"""The cost model finds what replicas really take, and who is slow."""

from __future__ import annotations

import numpy as np
import pytest

from prism_ray.placement.cost import Average, DecodeFit, PrefillFit, Speed


def test_the_fit_finds_the_true_costs_from_noisy_batches() -> None:
    rng = np.random.default_rng(3)
    fit = PrefillFit(tokens_per_s=1_000.0)
    for _ in range(600):
        new = rng.integers(50, 4_000, size=rng.integers(1, 4))
        prompt = new + rng.integers(0, 8_000, size=len(new))
        seconds = 0.004 * len(new) + 3e-5 * new.sum() + 2e-9 * (new * prompt).sum()
        seconds *= rng.uniform(0.95, 1.05)
        fit.observe(len(new), new.sum(), prompt.sum(), (new * prompt).sum(), float(seconds))
    for new_tokens, prompt_tokens in ((100, 5_000), (2_000, 2_000), (3_000, 9_000)):
        true = 0.004 + 3e-5 * new_tokens + 2e-9 * new_tokens * prompt_tokens
        assert fit.time.seconds(new_tokens, prompt_tokens) == pytest.approx(true, rel=0.15)
        fixed, slope = fit.time.line(prompt_tokens)
        assert fixed + slope * new_tokens == pytest.approx(
            fit.time.seconds(new_tokens, prompt_tokens)
        )


def test_it_follows_a_change() -> None:
    fit = PrefillFit(tokens_per_s=10_000.0)
    for pace in (1e-4, 5e-4):
        for number in range(1_500):
            tokens = 100 + number % 900
            fit.observe(1, tokens, tokens, tokens * tokens, pace * tokens)
        assert fit.time.seconds(500, 500) == pytest.approx(pace * 500, rel=0.1)


def test_before_any_report_the_prior_holds_and_nothing_is_ever_free() -> None:
    fit = PrefillFit(tokens_per_s=2_000.0)
    assert fit.time.seconds(1_000, 1_000) == pytest.approx(0.5)
    for _ in range(200):
        fit.observe(1, 100, 5_000, 500_000, 1e-9)
    assert fit.time.seconds(1_000, 1_000) > 0


def test_what_says_nothing_is_not_observed() -> None:
    fit = PrefillFit(tokens_per_s=2_000.0)
    before = fit.time
    fit.observe(0, 10, 10, 100, 1.0)
    fit.observe(1, 0, 10, 0, 1.0)
    fit.observe(1, 10, 10, 100, 0.0)
    assert fit.time == before
    assert fit.observations == 0


def test_decoding_costs_a_share_of_a_full_batch_however_idle_a_replica_is() -> None:
    """Else an idle replica, which decodes alone, would look loaded and stay idle."""
    fit = DecodeFit(token_s=1.0)
    for _ in range(50):
        fit.observe(100, 100 * 0.005, running=1)
    assert fit.token_s <= 0.005 / 8
    for running in range(2, 40):
        fit.observe(100, 100 * (0.005 + 1e-4 * running), running)
    assert fit.per_neighbour_s == pytest.approx(100 * 1e-4, rel=0.25)


def test_a_slow_replica_is_told_from_its_seconds_altogether() -> None:
    speed = Speed()
    for _ in range(7):
        speed.observe(10.0, 1.0)
    assert speed.factor == 1.0, "too few to judge"
    for _ in range(20):
        speed.observe(0.02, 0.001)
        speed.observe(10.0, 1.0)
    assert speed.factor == pytest.approx(10.0, rel=0.05)


def test_an_average_starts_plain_and_forgets_later() -> None:
    mean = Average(7.0, memory=4)
    assert mean.value == 7.0
    for value in (1.0, 3.0):
        mean.add(value)
    assert mean.value == 2.0
    for _ in range(50):
        mean.add(10.0)
    assert mean.value == pytest.approx(10.0, rel=1e-3)
