"""What an ingress counts of its requests and hands on to QAS: each count once, whoever takes it."""

from __future__ import annotations

import asyncio

import pytest

from prism_ray.model import Decision, Lane
from prism_ray.serving.ingress_meters import HAND_OVER_S, IngressMeters
from prism_ray.serving.meters import Counts

BY_ITSELF = "prism_decisions_total", ("direct", "qas_unavailable")
WAIT = "prism_queue_wait_seconds", ("cold",)


def decision() -> Decision:
    return Decision("a", 0, "", "r", 0, 0, (), Lane.COLD, 0.02, 0, reason="qas_unavailable")


def test_a_decision_without_qas_is_counted_with_its_reason_and_its_wait() -> None:
    meters = IngressMeters(lambda counts: True)
    meters.decided(decision())
    news = meters.take()
    assert news.counters == {BY_ITSELF: 1}
    assert news.histograms[WAIT].sum == 0.02
    assert meters.take() == Counts()


@pytest.mark.virtual_time
async def test_what_no_qas_took_is_handed_to_the_next_one_once() -> None:
    there = False
    asked, taken = Counts(), Counts()

    def send(counts: Counts) -> bool:
        (taken if there else asked).add(counts)
        return there

    meters = IngressMeters(send)
    meters.start()
    meters.decided(decision())
    await asyncio.sleep(3 * HAND_OVER_S)
    assert asked.counters[BY_ITSELF] >= 2, "asked again and again"
    meters.decided(decision())
    there = True
    await asyncio.sleep(3 * HAND_OVER_S)
    assert taken.counters == {BY_ITSELF: 2}
    assert sum(taken.histograms[WAIT].counts) == 2
    assert meters._task is not None
    meters._task.cancel()


def test_counts_that_were_taken_for_nobody_can_be_kept() -> None:
    meters = IngressMeters(lambda counts: False)
    meters.decided(decision())
    meters.keep(meters.take())
    meters.decided(decision())
    assert meters.take().counters == {BY_ITSELF: 2}
