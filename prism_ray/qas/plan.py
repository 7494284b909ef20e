"""The frozen plan of a round: the window signed, bucketed and ordered, and a pick for each column.

Changes nothing and remembers nothing of what was taken; that is the round's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prism_ray.model import Lane, Pick
from prism_ray.qas import buckets
from prism_ray.qas.counters import (
    NO_SEGMENT,
    Ints,
    Numbers,
    SegmentCounters,
    distinct,
    first_of_each,
)
from prism_ray.qas.params import QasParams
from prism_ray.qas.signature import serialize, sign
from prism_ray.qas.window import Entry, Window


class Plan:
    """Scores and orders at one moment; valid while neither counters nor window change."""

    def __init__(self, window: Window, counters: SegmentCounters, params: QasParams) -> None:
        self._window = window
        self._counters = counters
        self._params = params
        self._signatures = sign(window, counters, params)
        self._buckets = buckets.build(window, self._signatures, counters, params)
        self._oldest_first = range(window.columns)
        self._hot: list[int] = []
        self._unfolded = 0

    @property
    def numbers(self) -> Ints:
        """The window's matrix [segments of a request, columns] of segment numbers."""
        return self._window.numbers

    def columns(self, lane: Lane, count: int) -> Sequence[int]:
        """A lane's order: at least its first ``count`` columns, or all.

        Cold: oldest first. Hot: buckets by (score descending, oldest request), FIFO inside; buckets
        are unfolded only as far as they are asked for.
        """
        if lane is Lane.COLD:
            return self._oldest_first
        hot = self._hot
        while len(hot) < count and self._unfolded < len(self._buckets.order):
            hot.extend(self._buckets.columns(int(self._buckets.order[self._unfolded])))
            self._unfolded += 1
        return hot

    def entry(self, column: int) -> Entry:
        return self._window.entry(column)

    def segments(self) -> Ints:
        """Numbers of all segments in the window, ascending."""
        if self._params.bucket_segments == "union":
            numbers = self._buckets.reach.segment
            numbers = numbers.compress(first_of_each(numbers))
        else:
            numbers = distinct(self._window.numbers)
        return numbers[np.searchsorted(numbers, NO_SEGMENT + 1) :]

    def pick(self, column: int, lane: Lane, note: str = "") -> Pick:
        """What dispatching a column by a lane means, with the reason in words."""
        entry = self._window.entry(column)
        found, counters = self._buckets, self._counters
        bucket = int(found.of_column[column])
        score = float(found.scores[bucket])
        if lane is Lane.COLD:
            reason = f"cold lane: position {column} of {len(self._oldest_first)} by age"
        else:
            reason = f"hot lane: bucket of {int(found.sizes[bucket])}, score {score:.0f}"
        order = serialize(entry, counters, self._params)
        ids = counters.ids
        signature = tuple([ids[number] for number in self._numbers_of(bucket)])
        return Pick(entry.ticket, order, lane, signature, score, reason + note)

    def describe(self, top: int) -> list[dict[str, Any]]:
        """The best ``top`` buckets, for people."""
        return [
            {
                "signature": [name(self._counters, n) for n in self._numbers_of(bucket)],
                "score": float(self._buckets.scores[bucket]),
                "size": int(self._buckets.sizes[bucket]),
            }
            for bucket in self._buckets.order[:top].tolist()
        ]

    def _numbers_of(self, bucket: int) -> Numbers:
        return self._signatures.numbers(int(self._buckets.codes[bucket]))


def name(counters: SegmentCounters, number: int) -> str:
    """A segment for people: the client's label, or the digest in hex."""
    return counters.labels[number] or counters.ids[number].hex()
