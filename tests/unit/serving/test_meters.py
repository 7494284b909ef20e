"""Counting, adding up, and Prometheus's text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from prism_ray.serving.errors import ApiError
from prism_ray.serving.exposition import prometheus_text
from prism_ray.serving.held_bytes import HeldBytes
from prism_ray.serving.meters import FAMILIES, Counts, Meters

STATE: dict[str, Any] = {
    "waiting": 3,
    "sent": 2,
    "rounds": 7,
    "placement": "e2",
    "placements": {"exploit": 4, "replicate": 1},
    "telemetry": {"store_up": True},
    "replicas": [
        {
            "replica": "r1",
            "credit_tokens": 5,
            "queued_tokens": 60,
            "sent": 2,
            "running": None,
            "engine_waiting": 0,
            "pool_used_tokens": 9,
            "pool_tokens": 100,
            "prefill_tokens_per_s": 1.5,
            "resident_tokens": 40,
            "residency": "degraded",
            "evicted_tokens_total": 12,
            "engine": {
                "evicted_tokens_private": 8,
                "evicted_tokens_system": 4,
                "protected_tokens": 3,
            },
        },
        {
            "replica": "r2",
            "credit_tokens": 5,
            "queued_tokens": 60,
            "sent": 0,
            "running": 0,
            "engine_waiting": 0,
            "pool_used_tokens": 9,
            "pool_tokens": 100,
            "prefill_tokens_per_s": 1.5,
            "resident_tokens": 40,
            "residency": "exact",
            "evicted_tokens_total": 6,
            "engine": {"retractions_total": 2.0},
        },
    ],
}


def samples(counts: Counts) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = prometheus_text(counts, STATE).decode()
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


class TestMeters:
    def test_what_is_taken_is_new_once_and_stays_in_the_total(self) -> None:
        meters = Meters()
        meters.add("prism_prompt_tokens_total", 5)
        assert meters.take().counters == {("prism_prompt_tokens_total", ()): 5}
        assert meters.take() == Counts()
        meters.add("prism_prompt_tokens_total", 2)
        meters.take()
        assert meters.total.counters == {("prism_prompt_tokens_total", ()): 7}

    @given(st.lists(st.floats(0, 200), max_size=30), st.integers(1, 4))
    def test_parts_of_many_processes_add_up_to_one(self, values: list[float], parts: int) -> None:
        name, whole, gathered = "prism_queue_wait_seconds", Meters(), Meters()
        processes = [Meters() for _ in range(parts)]
        for number, value in enumerate(values):
            whole.observe(name, value, "hot")
            processes[number % parts].observe(name, value, "hot")
        for process in processes:
            gathered.merge(process.take())
        whole.take()
        mine, one = gathered.total.histograms, whole.total.histograms
        assert mine.keys() == one.keys()
        for key, histogram in one.items():
            assert mine[key].counts == histogram.counts
            assert sum(histogram.counts) == len(values)

    def test_an_observation_at_a_bound_counts_as_within_it(self) -> None:
        meters = Meters()
        for value in (0.001, 0.0011, 100.0, 101.0):
            meters.observe("prism_queue_wait_seconds", value, "hot")
        found = samples(_total(meters))
        name = "prism_queue_wait_seconds_bucket"

        def bucket(le: str) -> float:
            return found[name, (("lane", "hot"), ("le", le))]

        assert bucket("0.001") == 1
        assert bucket("0.003") == 2
        assert bucket("100.0") == 3
        assert bucket("+Inf") == 4


class TestText:
    def test_every_family_is_there_under_its_name(self) -> None:
        text = prometheus_text(Counts(), STATE).decode()
        for name in FAMILIES:
            assert f"# TYPE {name} " in text

    def test_gauges_say_the_state(self) -> None:
        found = samples(Counts())
        assert found["prism_waiting_requests", ()] == 3
        assert found["prism_telemetry_store_up", ()] == 1
        assert found["prism_rounds_total", ()] == 7
        copies = ("kind", "replicate"), ("placement", "e2")
        assert found["prism_placements_total", copies] == 1
        assert found["prism_replica_pool_tokens", (("replica", "r1"),)] == 100
        assert found["prism_replica_resident_tokens", (("replica", "r1"),)] == 40
        states = {
            state: found["prism_replica_residency", (("replica", "r1"), ("state", state))]
            for state in ("exact", "degraded", "fallback")
        }
        assert states == {"exact": 0, "degraded": 1, "fallback": 0}
        assert ("prism_replica_running", (("replica", "r1"),)) not in found

    def test_evictions_are_told_by_class_where_the_engine_knows_classes(self) -> None:
        found = samples(Counts())
        evicted = {
            key[1]: value
            for key, value in found.items()
            if key[0] == "prism_replica_evicted_tokens_total"
        }
        assert evicted == {
            (("class", "private"), ("replica", "r1")): 8,
            (("class", "system"), ("replica", "r1")): 4,
            (("class", "any"), ("replica", "r2")): 6,
        }
        assert found["prism_replica_protected_tokens", (("replica", "r1"),)] == 3
        assert ("prism_replica_protected_tokens", (("replica", "r2"),)) not in found
        assert found["prism_replica_retractions_total", (("replica", "r2"),)] == 2


class TestHeldBytes:
    def test_what_is_over_the_limit_is_refused_and_not_counted(self) -> None:
        held = HeldBytes(100, clock=lambda: 0.0)
        held.take(60)
        held.take(40)
        for size in (1, 50):
            with pytest.raises(ApiError) as refusal:
                held.take(size)
            assert refusal.value.status == 429
        held.give_back(60)
        held.take(60)
        assert held.bytes == 100

    def test_a_tenant_alone_may_have_all_and_gets_back_to_its_share_when_others_want_some(
        self,
    ) -> None:
        now = [0.0]
        held = HeldBytes(100, lambda tenant: 3.0 if tenant == "b" else 1.0, lambda: now[0])

        def refused(size: int, tenant: str) -> bool:
            try:
                held.take(size, tenant)
            except ApiError:
                return True
            return False

        for _ in range(10):
            held.take(10, "a")
        assert refused(10, "b")
        # What a holds only drains now, down to its quarter; b gets the rest.
        for _ in range(7):
            held.give_back(10, "a")
            assert refused(10, "a")
            assert not refused(10, "b")
            assert refused(10, "b")
        assert held.of_tenants() == {"a": 30, "b": 70}
        held.give_back(10, "a")
        assert not refused(5, "a")
        # Once b has gone and wants nothing any more, a may have all again.
        for _ in range(7):
            held.give_back(10, "b")
        now[0] += 10.0
        held.take(75, "a")
        assert held.of_tenants() == {"a": 100}
        assert held.bytes == 100

    def test_the_wait_follows_how_fast_bytes_leave(self) -> None:
        now = [0.0]
        held = HeldBytes(100, clock=lambda: now[0])
        held.take(100)
        for _ in range(5):
            now[0] += 2.0
            held.give_back(10)
            held.take(10)
        with pytest.raises(ApiError) as refusal:
            held.take(10)
        assert refusal.value.headers["Retry-After"] == "2"


def _total(meters: Meters) -> Counts:
    meters.take()
    return meters.total
