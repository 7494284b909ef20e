"""Passes the application's metrics on to Ray's, whose endpoint every Ray node has. Counts nothing.

Of a histogram that endpoint has what fell in which bucket; its ``_sum`` is made of the middles of the
buckets, by Ray too, so exact means are on ``/metrics`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_ray.serving.exposition import state_metrics
from prism_ray.serving.meters import FAMILIES, Counts


class RayMirror:
    """Of one process; Ray's endpoint adds counters up and shows a gauge until nobody sets it any more."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}

    def pass_on(self, counts: Counts) -> None:
        """What is new in a process's meters."""
        for name, family in FAMILIES.items():
            if not (family.labels or family.buckets or name in self._made):
                self._count(name, family.help, {}, 0)  # so that what never happens is there, too
        for (name, labels), amount in counts.counters.items():
            family = FAMILIES[name]
            tags = dict(zip(family.labels, labels, strict=True))
            self._count(name, family.help, tags, amount)
        for (name, labels), histogram in counts.histograms.items():
            tags = dict(zip(FAMILIES[name].labels, labels, strict=True))
            self._observe(name, histogram.counts, tags)

    def pass_state(self, state: Mapping[str, Any]) -> None:
        """What is read from the QAS actor's state: gauges as they are, of counts what is new.

        What an engine had counted before this process knew it is new once: each process's series are
        its own at Ray's endpoint, and begin like those of ``/metrics``.
        """
        told, self._told = self._told, {}
        for metric in state_metrics(state):
            for sample in metric.samples:
                if metric.type == "gauge":
                    self._gauge(sample.name, metric.documentation, sample.labels, sample.value)
                    continue
                key = sample.name, tuple(sample.labels.values())
                before = told.get(key, 0.0)
                grown = sample.value - before if sample.value >= before else sample.value
                self._count(sample.name, metric.documentation, sample.labels, grown)
                self._told[key] = sample.value

    def _count(self, name: str, text: str, tags: Mapping[str, str], amount: float) -> None:
        counter = self._made.get(name)
        if counter is None:
            from ray.util.metrics import Counter

            counter = self._made[name] = Counter(name, text, tag_keys=tuple(tags))
        if amount > 0:
            counter.inc(amount, tags=tags)
        else:
            counter._record(0.0, tags)  # ``inc`` refuses it, and without it there is no series

    def _gauge(self, name: str, text: str, tags: Mapping[str, str], value: float) -> None:
        gauge = self._made.get(name)
        if gauge is None:
            from ray.util.metrics import Gauge

            gauge = self._made[name] = Gauge(name, text, tag_keys=tuple(tags))
        gauge.set(value, tags=tags)

    def _observe(self, name: str, counts: list[int], tags: Mapping[str, str]) -> None:
        """Ray takes single observations only: each one is passed on as the middle of its bucket."""
        family = FAMILIES[name]
        made = self._made.get(name)
        if made is None:
            from ray.util.metrics import Histogram

            bounds = list(family.buckets)
            made = self._made[name] = Histogram(name, family.help, bounds, tag_keys=family.labels)
        edges = (0.0, *family.buckets)
        for low, high, count in zip(edges, (*family.buckets, 3 * edges[-1]), counts, strict=True):
            for _ in range(count):
                made.observe((low + high) / 2, tags=tags)
