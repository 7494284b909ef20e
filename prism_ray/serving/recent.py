"""TTFT, queue wait and lanes of the last minutes, out of an application's running totals. Counts nothing.

Every few seconds the totals are remembered; what lies between two of these marks is a *step*. So no
request costs anything here, and the memory is bounded by the number of steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from prism_ray.model import Lane
from prism_ray.serving.meters import FAMILIES, Counts, Histogram

STEP_S = 15.0
STEPS = 40
"""Ten minutes."""

TTFT = "prism_ttft_seconds"
QUEUE_WAIT = "prism_queue_wait_seconds"
TERMS = {
    "queue_wait_s": "prism_ttft_queue_wait_seconds",
    "prefill_s": "prism_ttft_prefill_seconds",
    "first_token_s": "prism_ttft_first_token_seconds",
}
"""The three terms of TTFT (paper, eq. 2) by the name that their means have here."""

_WATCHED = (TTFT, QUEUE_WAIT, *TERMS.values())


class _Mark(NamedTuple):
    """The totals of a moment: histograms over all lanes, and decisions by lane."""

    at_s: float
    totals: Mapping[str, Histogram]
    lanes: Mapping[str, int]


class Recent:
    """Marks of the last ``steps`` steps of ``step_s`` seconds each; longer ones if nobody looked."""

    def __init__(self, step_s: float = STEP_S, steps: int = STEPS) -> None:
        self._step_s = step_s
        self._steps = steps
        self._marks: deque[_Mark] = deque(maxlen=steps + 1)

    def look(self, total: Counts, now_s: float) -> None:
        """Mark the totals if a step is over."""
        if not self._marks or now_s - self._marks[-1].at_s >= self._step_s:
            self._marks.append(_mark(total, now_s))

    def describe(self, total: Counts, now_s: float) -> dict[str, Any]:
        """JSON-ready. Keys: step_s, span_s, steps (oldest first, the last one is not over) and all.

        Each step, and ``all`` of them as one: begin_age_s, end_age_s; ttft and queue_wait with count,
        mean_s, p95_s (interpolated inside a histogram's bucket); ttft_terms with the three means;
        lanes with the decisions by each. What nothing was counted of is None.
        """
        span_s = self._step_s * self._steps
        marks = [m for m in self._marks if now_s - m.at_s <= span_s + self._step_s]
        ends = [*marks, _mark(total, now_s)]
        return {
            "step_s": self._step_s,
            "span_s": span_s,
            "steps": [_step(begin, end, now_s) for begin, end in pairwise(ends)],
            "all": _step(ends[0], ends[-1], now_s),
        }


def _mark(counts: Counts, now_s: float) -> _Mark:
    totals = {name: Histogram([0] * (len(FAMILIES[name].buckets) + 1)) for name in _WATCHED}
    lanes = {str(lane): 0 for lane in Lane}
    for (name, labels), histogram in counts.histograms.items():
        if name in totals:
            mine = totals[name]
            mine.counts = [a + b for a, b in zip(mine.counts, histogram.counts, strict=True)]
            mine.sum += histogram.sum
        if name == QUEUE_WAIT:
            lanes[labels[0]] = sum(histogram.counts)
    return _Mark(now_s, totals, lanes)


def _step(begin: _Mark, end: _Mark, now_s: float) -> dict[str, Any]:
    between = {name: _less(end.totals[name], begin.totals[name]) for name in _WATCHED}
    terms = {key: _mean_s(between[name]) for key, name in TERMS.items()}
    return {
        "begin_age_s": now_s - begin.at_s,
        "end_age_s": now_s - end.at_s,
        "ttft": _summary(TTFT, between[TTFT]),
        "queue_wait": _summary(QUEUE_WAIT, between[QUEUE_WAIT]),
        "ttft_terms": terms,
        "lanes": {lane: end.lanes[lane] - begin.lanes[lane] for lane in end.lanes},
    }


def _less(end: Histogram, begin: Histogram) -> Histogram:
    counts = [a - b for a, b in zip(end.counts, begin.counts, strict=True)]
    return Histogram(counts, end.sum - begin.sum)


def _summary(name: str, histogram: Histogram) -> dict[str, Any]:
    return {
        "count": sum(histogram.counts),
        "mean_s": _mean_s(histogram),
        "p95_s": quantile_s(FAMILIES[name].buckets, histogram.counts, 0.95),
    }


def _mean_s(histogram: Histogram) -> float | None:
    count = sum(histogram.counts)
    return max(0.0, histogram.sum) / count if count else None


def quantile_s(bounds: tuple[float, ...], counts: list[int], part: float) -> float | None:
    """A quantile of a histogram, linear inside its bucket; of what lies above all bounds, the last one.

    ``counts`` has one entry more than ``bounds``. None if nothing was counted.
    """
    wanted = part * sum(counts)
    if not wanted:
        return None
    low_s, below = 0.0, 0
    for bound_s, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low_s + (bound_s - low_s) * (wanted - below) / count
        low_s, below = bound_s, below + count
    return bounds[-1]
