"""The application's metrics: which exist, and what one process has counted. Plain values; no exporter.

A process adds to its own meters and hands over what is new (``take``); the QAS actor adds those of the
whole application up (``merge``). Labels have few values; no client's text is ever one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Family:
    """A metric's description. ``buckets`` (upper bounds, ascending) make it a histogram."""

    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SHORT = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_TTFT_S = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 100.0)

FAMILIES = {
    "prism_requests_total": Family(
        "Requests that ended, by lane and outcome (ok, client_gone, client_stall or HTTP status).",
        ("lane", "outcome"),
    ),
    "prism_aborts_total": Family("Requests that were given up before their end.", ("reason",)),
    "prism_decisions_total": Family(
        "Decisions by policy (direct: an ingress without QAS) and reason.", ("policy", "reason")
    ),
    "prism_starvation_promotions_total": Family(
        "Decisions by right of a request's age (the cold lane), not of its rank.", ("policy",)
    ),
    "prism_prompt_tokens_total": Family("Prompt tokens that engines took."),
    "prism_cached_tokens_total": Family("Prompt tokens that engines had in their cache."),
    "prism_predicted_cached_tokens_total": Family("Cached tokens predicted when decided."),
    "prism_mispredicted_cached_tokens_total": Family(
        "Cached tokens that were predicted and not there, or there and not predicted."
    ),
    "prism_non_global_prompt_tokens_total": Family(
        "Prompt tokens beyond the system prefix and the tool schemas behind it."
    ),
    "prism_non_global_cached_tokens_total": Family(
        "Of these, tokens that engines had in their cache."
    ),
    "prism_output_tokens_total": Family("Tokens generated for requests that ended well."),
    "prism_queue_wait_seconds": Family("Arrival to decision.", ("lane",), _SECONDS),
    "prism_ttft_seconds": Family("Time to first token: arrival to it.", ("lane",), _TTFT_S),
    "prism_ttft_queue_wait_seconds": Family("First term of TTFT.", ("lane",), _SECONDS),
    "prism_ttft_prefill_seconds": Family("Second term of TTFT.", ("lane",), _SECONDS),
    "prism_ttft_first_token_seconds": Family("Third term of TTFT.", ("lane",), _SECONDS),
    "prism_inter_token_seconds": Family(
        "Mean time between the tokens of a streamed answer: one value an answer, not one a gap.",
        ("lane",),
        _SHORT,
    ),
    "prism_router_waits_total": Family(
        "Times that Serve's router held a call back since its replica was not there; 0 but for deaths."
    ),
    "prism_checkpoints_ignored_total": Family(
        "Checkpoints of a former QAS that were not used.", ("reason",)
    ),
    "prism_replicas_restored_total": Family(
        "Replicas that a new QAS knew from the former one's checkpoints."
    ),
    "prism_round_seconds": Family("Time that a scheduling round takes.", (), _SHORT),
    "prism_batch_size": Family("Requests of one plan.", (), (1, 2, 4, 8, 16, 32, 64, 128)),
}

Key = tuple[str, tuple[str, ...]]
"""A family's name and the values of its labels, in order."""


@dataclass(slots=True)
class Histogram:
    """Observations: how many fell in each bucket (the last: above all bounds), and their sum."""

    counts: list[int]
    sum: float = 0.0


@dataclass(slots=True)
class Counts:
    """What was counted; small enough to send."""

    counters: dict[Key, float] = field(default_factory=dict)
    histograms: dict[Key, Histogram] = field(default_factory=dict)

    def add(self, others: Counts) -> None:
        """Take up what was counted elsewhere, or at another time."""
        for key, amount in others.counters.items():
            self.counters[key] = self.counters.get(key, 0) + amount
        for key, histogram in others.histograms.items():
            mine = self.histograms.setdefault(key, Histogram([0] * len(histogram.counts)))
            mine.counts = [a + b for a, b in zip(mine.counts, histogram.counts, strict=True)]
            mine.sum += histogram.sum


class Meters:
    """Counts of one process, in total and since the last ``take``."""

    def __init__(self) -> None:
        self.total = Counts()
        self._new = Counts()

    def add(self, name: str, amount: float = 1, *labels: str) -> None:
        self._new.counters[name, labels] = self._new.counters.get((name, labels), 0) + amount

    def observe(self, name: str, value: float, *labels: str) -> None:
        bounds = FAMILIES[name].buckets
        histogram = self._new.histograms.get((name, labels))
        if histogram is None:
            histogram = self._new.histograms[name, labels] = Histogram([0] * (len(bounds) + 1))
        histogram.counts[bisect_left(bounds, value)] += 1
        histogram.sum += value

    def take(self) -> Counts:
        """What is new since the last call; from now on it is part of the total."""
        taken, self._new = self._new, Counts()
        self.merge(taken)
        return taken

    def merge(self, counts: Counts) -> None:
        """Add another process's news to the total."""
        self.total.add(counts)
