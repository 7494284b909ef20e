"""Segment counters G, A and first-seen ranks (paper, eq. 7), and P(r; ∅) of each as arrays.

Knows segments, not requests: callers say which segments were queued, sent or finished. A live
segment has a small *number*, an index into the arrays, recycled once nothing refers to the segment;
number 0 means "no segment" and pads the window's matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from prism_ray.model import Segment, SegmentId
from prism_ray.qas.priority import Weights

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Numbers = tuple[int, ...]
"""Distinct segment numbers of one request, by ascending rank."""

NO_SEGMENT = 0

GLOBAL_HANDICAP = 2.0**52
"""Above any P(r; ∅), and differences of whole numbers survive its subtraction."""

_ARRAYS = (
    "priority",
    "queued_priority",
    "signing",
    "is_global",
    "changed_at",
    "queued",
    "active",
    "ranks",
)

_Whole = TypeVar("_Whole", np.int32, np.int64)


class SegmentCounters:
    """G(r), A(r) and rank of every live segment.

    A segment is live while it is queued or active, and while it is kept: ``keep``/``release`` hold
    its number and rank for those who still speak of it, such as a replica's last dispatches, whose
    segments may be resident (A19). Then it is forgotten, and a later arrival is a first one.

    Everything is an array over numbers. ``queued``, ``active`` and ``ranks`` are always current;
    ``priority`` and ``queued_priority``, P(r; ∅) and its part w_g G(r), are brought up to date by
    ``flush``, and ``changed_at[r]`` is the flush that last wrote them. So is ``signing``, by which
    signatures choose: P(r; ∅), but behind all others what ``mark_global`` named.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.ids: list[SegmentId] = [b""]
        self.labels: list[str] = [""]
        self.flushes = 0
        self._kept: list[int] = [0]
        self._number_of: dict[SegmentId, int] = {}
        self._free: list[int] = []
        self._seen = 0
        self._touched: set[int] = set()
        self.priority: Floats = np.zeros(0)
        self.queued_priority: Floats = np.zeros(0)
        self.signing: Floats = np.zeros(0)
        self.is_global: Floats = np.zeros(0)
        self.changed_at: Ints = np.zeros(0, dtype=np.int64)
        self.queued: Ints = np.zeros(0, dtype=np.int64)
        self.active: Ints = np.zeros(0, dtype=np.int64)
        self.ranks: Ints = np.zeros(0, dtype=np.int64)
        self._allocate(64)

    def __len__(self) -> int:
        """Segments that are queued or active, or whose number is still kept."""
        return len(self._number_of)

    def enqueue(self, segments: Iterable[Segment]) -> tuple[Numbers, Numbers]:
        """Count one queued request: G += 1 for each distinct segment (sets, not multisets).

        Returns the numbers in skeleton order, and the distinct ones by ascending rank.
        """
        number_of = self._number_of
        slots = [number_of.get(segment.id) or self._admit(segment) for segment in segments]
        queued, rank = self._queued, self._rank
        found = dict.fromkeys(slots)
        for number in found:
            queued[number] += 1
        self._touched.update(found)
        return tuple(slots), tuple(sorted(found, key=rank.__getitem__))

    def mark_global(self, numbers: Iterable[int]) -> None:
        """These live segments are what all prompts of an application share (until forgotten)."""
        for number in numbers:
            self.is_global[number] = 1.0
        self._touched.update(numbers)

    def dequeue(self, numbers: Iterable[int]) -> None:
        """G -= 1: a queued request was cancelled."""
        queued, active, kept = self._queued, self._active, self._kept
        for number in numbers:
            queued[number] -= 1
            if not (queued[number] or active[number] or kept[number]):
                self._forget(number)
        self._touched.update(numbers)

    def send(self, numbers: Iterable[int]) -> None:
        """G -= 1, A += 1: queued requests were dispatched."""
        queued, active = self._queued, self._active
        for number in numbers:
            queued[number] -= 1
            active[number] += 1
        self._touched.update(numbers)

    def finish(self, numbers: Iterable[int]) -> None:
        """A -= 1: an active request ended."""
        queued, active, kept = self._queued, self._active, self._kept
        for number in numbers:
            active[number] -= 1
            if not (active[number] or queued[number] or kept[number]):
                self._forget(number)
        self._touched.update(numbers)

    def keep(self, numbers: Iterable[int]) -> None:
        """Hold the numbers of live segments until ``release``, whatever becomes of their counts."""
        kept = self._kept
        for number in numbers:
            kept[number] += 1

    def release(self, numbers: Iterable[int]) -> None:
        queued, active, kept = self._queued, self._active, self._kept
        for number in numbers:
            kept[number] -= 1
            if not (kept[number] or active[number] or queued[number]):
                self._forget(number)

    def sort_keys(self, numbers: Iterable[int]) -> list[tuple[float, int]]:
        """Keys that sort segments by (P(r; ∅) descending, rank ascending); flushed counters."""
        priority, rank = self._priority, self._rank
        return [(-priority[n], rank[n]) for n in numbers]

    def signing_keys(self, numbers: Iterable[int]) -> list[tuple[float, int]]:
        """Keys that sort segments as signatures choose them; flushed counters."""
        signing, rank = self.signing, self._rank
        return [(-float(signing[n]), rank[n]) for n in numbers]

    def counts(self, number: int) -> tuple[int, int]:
        """(A, G) of a live segment."""
        return self._active[number], self._queued[number]

    def flush(self) -> None:
        """Write what changed since the last flush into the arrays; costs what changed."""
        if not self._touched:
            return
        self.flushes += 1
        at = np.fromiter(self._touched, dtype=np.int64, count=len(self._touched))
        self._touched.clear()
        queued = self.weights.queued * self.queued.take(at)
        self.queued_priority[at] = queued
        priority = self.weights.active * self.active.take(at) + queued
        self.priority[at] = priority
        self.signing[at] = priority - GLOBAL_HANDICAP * self.is_global.take(at)
        self.changed_at[at] = self.flushes

    def hottest(self, count: int) -> list[int]:
        """Numbers of the ``count`` live segments of highest P(r; ∅) (flushed); for people."""
        live = self.priority[1 : len(self.ids)]
        count = min(count, len(live))
        if count == 0:
            return []
        found = 1 + np.argpartition(-live, count - 1)[:count]
        return [number for number in found.tolist() if self._queued[number] or self._active[number]]

    def check_integrity(
        self, queued: Iterable[Numbers], active: Iterable[Numbers], kept: Iterable[Numbers]
    ) -> None:
        """AssertionError unless the counts equal a recount and nothing is held for nobody."""
        self.flush()
        size = len(self.ids)
        counted = (self.queued.tolist(), queued), (self.active.tolist(), active), (self._kept, kept)
        for counts, requests in counted:
            recount = [0] * len(counts)
            for numbers in requests:
                assert len(set(numbers)) == len(numbers), "a segment counts once per request"
                for number in numbers:
                    recount[number] += 1
            assert counts == recount, "a counter differs from its recount"
        live = set(self._number_of.values())
        assert all(self.ids[n] == i for i, n in self._number_of.items())
        assert live.isdisjoint(self._free)
        assert live | set(self._free) == set(range(1, size))
        ranked = [self._rank[n] for n in live]
        assert len(set(ranked)) == len(ranked), "two segments have one rank"
        for number in live:
            uses = self._queued[number], self._active[number], self._kept[number]
            assert any(uses), "a segment at zero was not forgotten"
            assert self.priority[number] == self.weights.priority(uses[1], 0, uses[0])
            assert self.queued_priority[number] == self.weights.queued * uses[0]
        assert self.priority[NO_SEGMENT] == -np.inf

    def _admit(self, segment: Segment) -> int:
        if self._free:
            number = self._free.pop()
            self.ids[number] = segment.id
            self.labels[number] = segment.label
        else:
            number = len(self.ids)
            self.ids.append(segment.id)
            self.labels.append(segment.label)
            self._kept.append(0)
            if number == len(self.priority):
                self._allocate(2 * number)
        self._number_of[segment.id] = number
        self._seen += 1
        self._rank[number] = self._seen
        return number

    def _forget(self, number: int) -> None:
        del self._number_of[self.ids[number]]
        self.ids[number] = b""
        self.labels[number] = ""
        self.is_global[number] = 0.0
        self._free.append(number)

    def _allocate(self, size: int) -> None:
        """Arrays of ``size``; what was written stays, the rest is zero.

        Single counts are read and written through memory views, at twice the speed of the array.
        """
        more = size - len(self.priority)
        for name in _ARRAYS:
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self._queued = memoryview(self.queued.data)
        self._active = memoryview(self.active.data)
        self._rank = memoryview(self.ranks.data)
        self._priority = memoryview(self.priority.data)
        self.priority[NO_SEGMENT] = self.signing[NO_SEGMENT] = -np.inf


def distinct(values: npt.NDArray[_Whole]) -> npt.NDArray[_Whole]:
    """The distinct values in ascending order.

    A plain sort beats np.unique at these sizes, and ``compress`` a boolean index.
    """
    ordered = values.flatten()
    ordered.sort()
    return ordered.compress(first_of_each(ordered))


def first_of_each(ordered: npt.NDArray[_Whole]) -> npt.NDArray[np.bool_]:
    """True where a sorted array differs from the value before."""
    first = np.empty(ordered.size, dtype=np.bool_)
    first[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first
