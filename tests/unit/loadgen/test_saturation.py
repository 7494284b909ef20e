"""Saturation is told from queues simulated here, whose truth is known."""

from __future__ import annotations

import random

import numpy as np
import pytest

from loadgen.rows import Outcome, RequestRow
from loadgen.saturation import detect, trend, under_way


def queue(utilization: float, count: int, seed: int, servers: int = 4) -> list[RequestRow]:
    """An M/M/c queue of ``servers`` with services of one second on average."""
    rng = random.Random(seed)
    free_at_s = [0.0] * servers
    now_s, rows = 0.0, []
    for number in range(count):
        now_s += rng.expovariate(utilization * servers)
        server = min(range(servers), key=free_at_s.__getitem__)
        begin_s = max(now_s, free_at_s[server])
        free_at_s[server] = begin_s + rng.expovariate(1.0)
        rows.append(
            RequestRow(
                id=str(number),
                scheduled_s=now_s,
                sent_s=now_s,
                chunk_s=[begin_s + 0.01],
                ended_s=free_at_s[server],
                outcome=Outcome.ANSWERED,
            )
        )
    return rows


def verdict(rows: list[RequestRow]) -> bool | None:
    return detect(rows, rows[len(rows) // 5].scheduled_s, rows[-1].scheduled_s).saturated


@pytest.mark.parametrize("seed", range(10))
def test_a_queue_that_never_ends_is_saturated(seed: int) -> None:
    assert verdict(queue(1.5, 600, seed)) is True


@pytest.mark.parametrize("seed", range(10))
def test_a_server_at_half_load_is_not(seed: int) -> None:
    assert verdict(queue(0.5, 600, seed)) is False


def test_growing_concurrency_with_steady_ttft_is_no_saturation() -> None:
    """Answers that get longer are not a queue."""
    rows = queue(0.3, 400, 1)
    for row in rows:
        row.ended_s = (row.ended_s or 0.0) + row.scheduled_s
    assert detect(rows, 0.0, rows[-1].scheduled_s).concurrency.grows  # type: ignore[union-attr]
    assert verdict(rows) is False


def test_a_server_that_turns_requests_away_is_saturated_though_its_queue_is_short() -> None:
    rows = queue(0.5, 400, 2)
    for row in rows[::20]:
        row.outcome, row.chunk_s = Outcome.REFUSED, []
    found = detect(rows, 0.0, rows[-1].scheduled_s)
    assert found.saturated is True
    assert "20 of 400" in found.reason


@pytest.mark.parametrize(
    ("outcome", "status", "saturated"),
    [
        (Outcome.REFUSED, 429, True),
        (Outcome.REFUSED, 408, True),
        (Outcome.REFUSED, 503, True),
        (Outcome.TIMEOUT, None, True),
        (Outcome.CONNECTION, None, True),
        (Outcome.TRUNCATED, 200, True),
        (Outcome.STREAM_ERROR, 200, True),
        (Outcome.REFUSED, 400, False),
        (Outcome.REFUSED, 404, False),
        (Outcome.MALFORMED, 200, False),
    ],
)
def test_what_an_overloaded_server_does_to_requests_counts_and_a_wrong_request_does_not(
    outcome: Outcome, status: int | None, saturated: bool
) -> None:
    rows = queue(0.5, 600, 2)
    for row in rows[::20]:
        row.outcome, row.status, row.chunk_s = outcome, status, []
    found = detect(rows, 0.0, rows[-1].scheduled_s)
    assert found.saturated is saturated
    assert (f"30 {outcome}" in found.reason) is saturated


def test_too_short_a_run_tells_nothing() -> None:
    assert verdict(queue(0.5, 2, 3)) is None
    assert verdict(queue(0.5, 1, 3)) is None


def test_without_streams_concurrency_alone_decides() -> None:
    rows = queue(1.5, 600, 4)
    for row in rows:
        row.streamed = False
    assert verdict(rows) is True


def test_a_trend_is_the_slope_of_a_line_and_its_share_of_the_mean() -> None:
    times = np.linspace(0, 10, 101)
    found = trend(times, 3 + 2 * times)
    assert found is not None
    assert found.slope_per_s == pytest.approx(2)
    assert found.growth == pytest.approx(20 / 13, rel=0.02)
    assert found.grows
    falling = trend(times, 30 - 2 * times)
    assert falling is not None
    assert not falling.grows
    trifle = trend(times, 100 + 0.1 * times)
    assert trifle is not None
    assert not trifle.grows


def test_under_way_counts_from_arrival_to_end() -> None:
    rows = [
        RequestRow("a", 1.0, ended_s=3.0),
        RequestRow("b", 2.0, ended_s=None),
        RequestRow("c", 2.5, ended_s=2.75),
    ]
    times = np.array([0.5, 1.0, 2.0, 2.6, 2.8, 5.0])
    assert under_way(rows, times).tolist() == [0, 1, 2, 3, 2, 1]
