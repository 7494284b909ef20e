"""What reaches Ray's metrics: every count once, gauges as they are."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from ray.util import metrics

from prism_ray.serving.exposition import series
from prism_ray.serving.meters import FAMILIES, Counts, Meters
from prism_ray.serving.ray_mirror import RayMirror

from .actor_bench import Bench, hello
from .test_dashboard import everything_counted
from .test_meters import STATE

Labels = tuple[str, ...]


class Ray:
    """Ray's metrics of one process, by name and the values of the labels."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, Labels], float] = {}
        self.gauges: dict[tuple[str, Labels], float] = {}
        self.observed: dict[tuple[str, Labels], list[float]] = {}

    def made(self, write: Callable[[tuple[str, Labels], float], None]) -> Callable[..., Any]:
        """A class of metrics whose records go to ``write``; its checks are Ray's own."""

        class Made(metrics.Metric):
            def __init__(self, name: str, *arguments: Any, tag_keys: Labels = ()) -> None:
                super().__init__(name, str(arguments[0]), tag_keys)

            def _record(self, value: float, tags: dict[str, str] | None = None) -> None:
                self._validate_tags(tags or {})
                write((self._name, tuple((tags or {})[key] for key in self._tag_keys)), value)

            inc = observe = set = _record

        return Made


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    there = Ray()

    def count(key: tuple[str, Labels], amount: float) -> None:
        there.counters[key] = there.counters.get(key, 0) + amount

    monkeypatch.setattr(metrics, "Counter", there.made(count))
    monkeypatch.setattr(metrics, "Gauge", there.made(there.gauges.__setitem__))
    monkeypatch.setattr(
        metrics, "Histogram", there.made(lambda k, v: there.observed.setdefault(k, []).append(v))
    )
    return there


def with_engine(evicted_tokens: float) -> dict[str, Any]:
    state = deepcopy(STATE)
    state["replicas"][0]["engine"]["evicted_tokens_private"] = evicted_tokens
    return state


EVICTED = "prism_replica_evicted_tokens_total", ("r1", "private")


def test_every_series_of_the_metrics_page_is_there(ray: Ray) -> None:
    mirror = RayMirror()
    mirror.pass_on(everything_counted())
    mirror.pass_state(STATE)
    there = {name for name, _ in (*ray.counters, *ray.gauges)}
    there |= {f"{name}_{part}" for name, _ in ray.observed for part in ("sum", "count", "bucket")}
    assert there == set(series())


def test_what_never_happened_is_there_as_nothing(ray: Ray) -> None:
    mirror = RayMirror()
    mirror.pass_on(Counts())
    mirror.pass_on(Counts())
    single = {n for n, f in FAMILIES.items() if not (f.labels or f.buckets)}
    assert ray.counters == {(name, ()): 0 for name in single}


def test_a_count_of_the_state_grows_by_what_is_new(ray: Ray) -> None:
    mirror = RayMirror()
    mirror.pass_state(STATE)
    copies = "prism_placements_total", ("e2", "replicate")
    assert ray.counters["prism_rounds_total", ()] == 7
    assert ray.counters[copies] == 1
    mirror.pass_state(STATE | {"rounds": 9})
    mirror.pass_state(STATE | {"rounds": 9, "placements": {"exploit": 4, "replicate": 3}})
    assert ray.counters["prism_rounds_total", ()] == 9
    assert ray.counters[copies] == 3
    assert ray.gauges["prism_waiting_requests", ()] == 3
    assert ray.gauges["prism_replica_residency", ("r1", "degraded")] == 1


def test_an_engine_that_is_met_late_has_all_that_it_counted(ray: Ray) -> None:
    mirror = RayMirror()
    mirror.pass_state(STATE | {"replicas": []})
    mirror.pass_state(with_engine(500))
    mirror.pass_state(with_engine(520))
    assert ray.counters[EVICTED] == 520


def test_an_engine_that_began_anew_counts_from_nothing(ray: Ray) -> None:
    mirror = RayMirror()
    for evicted in (500, 530, 8):
        mirror.pass_state(with_engine(evicted))
    assert ray.counters[EVICTED] == 538


def test_an_observation_stays_in_its_bucket(ray: Ray) -> None:
    meters, again = Meters(), Meters()
    for value in (0.0004, 0.001, 0.5, 99.0, 250.0):
        meters.observe("prism_queue_wait_seconds", value, "hot")
    news = meters.take()
    RayMirror().pass_on(news)
    for value in ray.observed["prism_queue_wait_seconds", ("hot",)]:
        again.observe("prism_queue_wait_seconds", value, "hot")
    key = "prism_queue_wait_seconds", ("hot",)
    assert again.take().histograms[key].counts == news.histograms[key].counts


def test_a_replica_that_left_is_told_no_more(ray: Ray) -> None:
    mirror = RayMirror()
    mirror.pass_state(STATE)
    ray.gauges.clear()
    mirror.pass_state(STATE | {"replicas": STATE["replicas"][1:]})
    replicas = {labels[0] for name, labels in ray.gauges if name == "prism_replica_running"}
    assert replicas == {"r2"}


async def test_the_qas_actor_tells_its_books_every_two_seconds(ray: Ray) -> None:
    async with Bench() as bench:
        await bench.actor.hello(hello("replica-1"))
        sent = "prism_replica_sent", ("replica-1",)
        hand_over = bench.actor._telemetry.hand_over
        hand_over(bench.actor._books)
        assert ray.gauges[sent] == 0
        await bench.submit("a")
        hand_over(bench.actor._books)
        assert ray.gauges[sent] == 0, "not yet"
        bench.now += 2.0
        hand_over(bench.actor._books)
        assert ray.gauges[sent] == 1
