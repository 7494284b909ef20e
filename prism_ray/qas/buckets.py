"""Buckets of equal signature, their utility and score, and the hot order (paper, eqs. 8, 11, 12).

All at once over the window's matrix; which request leaves next is the plan's business.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from prism_ray.qas.counters import (
    NO_SEGMENT,
    Floats,
    Ints,
    SegmentCounters,
    distinct,
    first_of_each,
)
from prism_ray.qas.params import QasParams
from prism_ray.qas.signature import Signatures
from prism_ray.qas.window import Window


class Reach(NamedTuple):
    """R_b of every bucket as pairs, and what its requests bring to Σ_{r in R_b} N(r; B).

    Pair i says that segment ``segment[i]`` is in R_b of ``bucket[i]``; pairs are sorted.
    ``weight[m]`` is |R(q) ∩ R_b| of the m-th member q, so the sum of N over R_b is the sum of
    weights over B.
    """

    segment: Ints
    bucket: Ints
    weight: Ints


class Buckets(NamedTuple):
    """Buckets b = 0, 1, … of the window's columns.

    ``members[starts[b] : starts[b] + sizes[b]]`` are the columns of b, oldest first, all of them
    signed ``codes[b]``; ``of_column[c]`` is the bucket of column c; ``order`` lists the buckets best
    first.
    """

    codes: Ints
    members: Ints
    starts: Ints
    sizes: Ints
    of_column: Ints
    reach: Reach
    scores: Floats
    order: Ints

    def columns(self, bucket: int) -> list[int]:
        """The bucket's columns, oldest first."""
        start = int(self.starts[bucket])
        columns: list[int] = self.members[start : start + int(self.sizes[bucket])].tolist()
        return columns


def build(
    window: Window, signatures: Signatures, counters: SegmentCounters, params: QasParams
) -> Buckets:
    """Group, score and order; ties in score go to the bucket with the oldest request."""
    members, bounds = _group(signatures.codes)
    starts, sizes = bounds[:-1], bounds[1:] - bounds[:-1]
    oldest = members.take(starts)
    codes = signatures.codes.take(oldest)
    of_column = np.empty_like(members)
    of_column[members] = np.repeat(np.arange(len(starts)), sizes)
    if params.bucket_segments == "union":
        reach = _union(window, members, of_column, len(starts), len(counters.ids))
    else:
        reach = _signature_only(signatures, codes, sizes)
    utility = _Utility(reach, starts, sizes, counters, params)
    if params.hot_batch == "bucket":
        scores = utility.scores()
        order = np.lexsort((oldest, -scores))
    else:
        scores, order = _order_running(utility, window, members, oldest)
    return Buckets(codes, members, starts, sizes, of_column, reach, scores, order)


def _group(codes: Ints) -> tuple[Ints, Ints]:
    """Columns grouped by code, in queue order inside, and the bounds of the groups.

    One sort of code and column packed into one integer: cheaper than a stable argsort.
    """
    shift = len(codes).bit_length()
    packed = codes << shift | np.arange(len(codes))
    packed.sort()
    first = np.ones(len(codes) + 1, dtype=np.bool_)
    first[:-1] = first_of_each(packed >> shift)
    return packed & ((1 << shift) - 1), first.nonzero()[0]


def _union(window: Window, members: Ints, of_column: Ints, buckets: int, live: int) -> Reach:
    """A1 ``union``: R_b holds every segment of the bucket's requests.

    All numbers are below ``live``.
    """
    shift = buckets.bit_length()
    packed = window.numbers << shift | of_column
    if live << shift < 2**31:
        packed = packed.astype(np.int32)  # sorts twice as fast
    pairs = distinct(packed).astype(np.int64)
    first = np.searchsorted(pairs, (NO_SEGMENT + 1) << shift)
    pairs = pairs[first:]
    return Reach(pairs >> shift, pairs & ((1 << shift) - 1), window.lengths.take(members))


def _signature_only(signatures: Signatures, codes: Ints, sizes: Ints) -> Reach:
    """A1 ``signature``: R_b holds the segments of the signature, which all its requests contain."""
    signed = [signatures.numbers(code) for code in codes.tolist()]
    lengths = np.array([len(numbers) for numbers in signed], dtype=np.int64)
    flat = np.array([number for numbers in signed for number in numbers], dtype=np.int64)
    return Reach(flat, np.repeat(np.arange(len(codes)), lengths), np.repeat(lengths, sizes))


class _Utility:
    """U(b) of eq. 11 and Score(b) of eq. 12 of all buckets, for given reference batches."""

    def __init__(
        self,
        reach: Reach,
        starts: Ints,
        sizes: Ints,
        counters: SegmentCounters,
        params: QasParams,
    ) -> None:
        self._reach = reach
        self._params = params
        self._weight_next = counters.weights.next
        self._starts, self.sizes = starts, sizes
        self._spread = np.maximum(np.bincount(reach.bucket, minlength=len(sizes)), 1)
        self._demand = np.bincount(
            reach.bucket, counters.priority.take(reach.segment), minlength=len(sizes)
        )

    def scores(self, room: int | None = None, running: Ints | None = None) -> Floats:
        """Score(b) if B_hot_b = ``running`` (N per segment number) + the first ``room`` of b.

        Without arguments B_hot_b is the bucket's first B_max − q_cold requests: the hot share of a
        run of B_max dispatches if b were scanned first (A2, A7).
        """
        room = self._params.hot_max if room is None else room
        next_sum = self._first_members_weight(room)
        if running is not None:
            next_sum = next_sum + np.bincount(
                self._reach.bucket, running[self._reach.segment], minlength=len(self.sizes)
            )
        utility = (self._demand + self._weight_next * next_sum) / self._spread
        scores: Floats = self._params.alpha_size * self.sizes + self._params.beta_util * utility
        return scores

    def _first_members_weight(self, room: int) -> Ints:
        """Per bucket the weights of its first ``room`` members, from running sums."""
        sums = np.zeros(len(self._reach.weight) + 1, dtype=np.int64)
        self._reach.weight.cumsum(out=sums[1:])
        ends = self._starts + np.minimum(self.sizes, room)
        total: Ints = sums.take(ends) - sums.take(self._starts)
        return total


def _order_running(
    utility: _Utility, window: Window, members: Ints, oldest: Ints
) -> tuple[Floats, Ints]:
    """A2 ``running``: the best bucket joins the running hot batch, the others are scored anew.

    Until the hot share of B_max is full; the buckets that are left keep the scores they have then.
    """
    running = np.zeros(int(window.numbers.max(initial=0)) + 1, dtype=np.int64)
    room = utility._params.hot_max
    final = utility.scores(room, running)
    waiting = np.ones(len(final), dtype=np.bool_)
    chosen: list[int] = []
    while room > 0 and waiting.any():
        scores = utility.scores(room, running)
        final[waiting] = scores[waiting]
        best = int(np.lexsort((oldest, -scores, ~waiting))[0])
        waiting[best] = False
        chosen.append(best)
        start = int(utility._starts[best])
        joined = members[start : start + min(room, int(utility.sizes[best]))]
        np.add.at(running, window.numbers[:, joined].ravel(), 1)
        room -= len(joined)
    scores = utility.scores(room, running)
    final[waiting] = scores[waiting]
    rest = np.flatnonzero(waiting)
    rest = rest[np.lexsort((oldest[rest], -final[rest]))]
    return final, np.concatenate([np.array(chosen, dtype=np.int64), rest])
