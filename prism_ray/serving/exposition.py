"""Meters and the QAS actor's state for others to read: Prometheus text for ``/metrics``. Counts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from prism_ray.dispatch import ResidencyState
from prism_ray.serving.meters import FAMILIES, Counts, Family

REPLICA_GAUGES = {
    "credit_tokens": "Tokens that may still be sent ahead of the prefill.",
    "queued_tokens": "Prompt tokens in the window that wait for this replica.",
    "sent": "Requests that were sent and did not return.",
    "running": "Requests in the engine.",
    "engine_waiting": "Requests that wait inside the engine.",
    "pool_used_tokens": "Tokens in the KV pool.",
    "pool_tokens": "Size of the KV pool.",
    "resident_tokens": "Reusable tokens believed to be in the cache.",
    "prefill_tokens_per_s": "Measured prefill rate.",
}
"""Gauges of each replica: the field of its state, and what it says."""

STATE_FAMILIES = {
    "prism_waiting_requests": Family("Requests in the window."),
    "prism_sent_requests": Family("Requests that replicas have."),
    "prism_rounds_total": Family("Scheduling rounds."),
    "prism_placements_total": Family("Choices of a replica, by kind.", ("placement", "kind")),
    "prism_telemetry_store_up": Family("Whether the telemetry store answers."),
    **{
        f"prism_replica_{name}": Family(text, ("replica",)) for name, text in REPLICA_GAUGES.items()
    },
    "prism_replica_evicted_tokens_total": Family(
        "Tokens that left the cache, by class (any: the engine tells no classes).",
        ("replica", "class"),
    ),
    "prism_replica_protected_tokens": Family("Tokens that are evicted last.", ("replica",)),
    "prism_replica_retractions_total": Family("Running requests that lost their KV.", ("replica",)),
    "prism_replica_residency": Family(
        "What is known of the replica's cache: 1 for the state that it is in.",
        ("replica", "state"),
    ),
}
"""What is read from the QAS actor's state: counters end in ``_total``, the others are gauges."""

EVICTED = "evicted_tokens_"
"""How an engine's counts of evicted tokens begin; their class follows."""


class _Gathered:
    """A collector for prometheus_client over counts and a QAS state."""

    def __init__(self, counts: Counts, state: Mapping[str, Any]) -> None:
        self._counts = counts
        self._state = state

    def collect(self) -> Iterable[Metric]:
        for name, family in FAMILIES.items():
            if family.buckets:
                yield self._histogram(name)
            else:
                yield self._counter(name)
        yield from state_metrics(self._state)

    def _counter(self, name: str) -> Metric:
        family = FAMILIES[name]
        metric = CounterMetricFamily(name.removesuffix("_total"), family.help, labels=family.labels)
        values = {k[1]: v for k, v in self._counts.counters.items() if k[0] == name}
        if not family.labels:
            values.setdefault((), 0)
        for labels, value in sorted(values.items()):
            metric.add_metric(labels, value)
        return metric

    def _histogram(self, name: str) -> Metric:
        family = FAMILIES[name]
        metric = HistogramMetricFamily(name, family.help, labels=family.labels)
        bounds = [*(str(float(bound)) for bound in family.buckets), "+Inf"]
        for (own, labels), histogram in sorted(self._counts.histograms.items()):
            if own == name:
                buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
                metric.add_metric(labels, buckets, sum_value=histogram.sum)
        return metric


def prometheus_text(counts: Counts, state: Mapping[str, Any]) -> bytes:
    """Text in Prometheus's exposition format; ``state`` is the QAS actor's."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Gathered(counts, state))
    return generate_latest(registry)


def series() -> dict[str, frozenset[str]]:
    """Every series that ``/metrics`` can have, with the names of its labels."""
    found: dict[str, frozenset[str]] = {}
    for name, family in (FAMILIES | STATE_FAMILIES).items():
        labels = frozenset(family.labels)
        if family.buckets:
            found |= {f"{name}_sum": labels, f"{name}_count": labels}
            found[f"{name}_bucket"] = labels | {"le"}
        else:
            found[name] = labels
    return found


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    family = STATE_FAMILIES[name]
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), family.help, labels=family.labels)
    return GaugeMetricFamily(name, family.help, labels=family.labels)


def state_metrics(state: Mapping[str, Any]) -> Iterable[Metric]:
    """The families of ``STATE_FAMILIES`` with what the state says."""
    single = {
        "prism_waiting_requests": state["waiting"],
        "prism_sent_requests": state["sent"],
        "prism_rounds_total": state["rounds"],
        "prism_telemetry_store_up": state["telemetry"]["store_up"],
    }
    for name, value in single.items():
        metric = _family(name)
        metric.add_metric((), float(value))
        yield metric
    placements = _family("prism_placements_total")
    for kind, count in state["placements"].items():
        placements.add_metric([state["placement"], kind], count)
    yield placements
    for name in REPLICA_GAUGES:
        metric = _family(f"prism_replica_{name}")
        for replica in state["replicas"]:
            if replica[name] is not None:
                metric.add_metric([replica["replica"]], replica[name])
        yield metric
    yield from _engine_counts(state["replicas"])
    residency = _family("prism_replica_residency")
    for replica in state["replicas"]:
        for known in ResidencyState:
            value = float(replica["residency"] == known)
            residency.add_metric([replica["replica"], str(known)], value)
    yield residency


def _engine_counts(replicas: Iterable[Mapping[str, Any]]) -> Iterable[Metric]:
    """What engines count, as far as they do: evictions by class, protection, retractions."""
    evicted = _family("prism_replica_evicted_tokens_total")
    protected = _family("prism_replica_protected_tokens")
    retractions = _family("prism_replica_retractions_total")
    for replica in replicas:
        name, counts = replica["replica"], replica["engine"]
        classes = {
            key.removeprefix(EVICTED): value
            for key, value in counts.items()
            if key.startswith(EVICTED)
        }
        for kind, tokens in (classes or {"any": replica["evicted_tokens_total"]}).items():
            evicted.add_metric([name, kind], tokens)
        if "protected_tokens" in counts:
            protected.add_metric([name], counts["protected_tokens"])
        if "retractions_total" in counts:
            retractions.add_metric([name], counts["retractions_total"])
    yield from (evicted, protected, retractions)
