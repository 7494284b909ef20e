"""Front alignment and bucket signatures (paper, "Bucket-signature generation", eq. 10).

Both rank segments by P(r; ∅); grouping by signature is the buckets' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from prism_ray.model import Order, Skeleton
from prism_ray.qas.counters import NO_SEGMENT, Ints, Numbers, SegmentCounters
from prism_ray.qas.params import QasParams
from prism_ray.qas.window import Entry, Window

SortKey = tuple[float, int]
"""(-P(r; ∅), rank): the smallest is the hottest, and ties never depend on arrival noise (A3)."""


def align(skeleton: Skeleton, keys: Sequence[SortKey], params: QasParams) -> Order:
    """Serialization with the ``f_front`` hottest segments of each run at the front of that run.

    ``keys`` has one sort key per segment of the skeleton. The front block is in key order, or with
    ``front_order="original"`` as the client wrote it (A3); all others keep their own order. Segments
    outside runs stay where they are.
    """
    segments = skeleton.segments
    order = list(range(len(segments)))
    for run in _runs(tuple([segment.run for segment in segments])):
        hottest_first = sorted(run, key=keys.__getitem__)
        front, rest = hottest_first[: params.f_front], hottest_first[params.f_front :]
        if params.front_order == "original":
            front.sort()
        rest.sort()
        for slot, index in zip(run, front + rest, strict=True):
            order[slot] = index
    return tuple(order)


@lru_cache(maxsize=1024)
def _runs(shape: tuple[int | None, ...]) -> tuple[tuple[int, ...], ...]:
    """``Skeleton.runs`` by the run of each slot: prompts come in few shapes, and this is hot."""
    slots: dict[int, list[int]] = {}
    for slot, run in enumerate(shape):
        if run is not None:
            slots.setdefault(run, []).append(slot)
    return tuple(tuple(s) for s in slots.values() if len(s) > 1)


def serialize(entry: Entry, counters: SegmentCounters, params: QasParams) -> Order:
    """The order in which a request would be written now (flushed counters)."""
    if entry.order is not None:
        return entry.order
    return align(entry.ticket.skeleton, counters.sort_keys(entry.slots), params)


def top(serialized: Sequence[int], counters: SegmentCounters, kappa: int) -> Numbers:
    """Top→κ of eq. 10: the κ hottest distinct numbers of ``serialized``, in its order.

    What all prompts of an application share (``signature_segments``) comes last: it tells nobody apart.
    """
    found = tuple(dict.fromkeys(serialized))
    if len(found) <= kappa:
        return found
    hottest = sorted(zip(counters.signing_keys(found), found, strict=True))[:kappa]
    chosen = {number for _, number in hottest}
    return tuple(number for number in found if number in chosen)


class Signatures:
    """Signatures of the window's requests: ``codes[c]`` is equal for columns with equal signatures."""

    def __init__(self, codes: Ints, table: list[Numbers] | None = None) -> None:
        self.codes = codes
        self._table = table

    def numbers(self, code: int) -> Numbers:
        """The segment numbers of a signature, in serialized order."""
        if self._table is not None:
            return self._table[code]
        return () if code == NO_SEGMENT else (code,)


def sign(window: Window, counters: SegmentCounters, params: QasParams) -> Signatures:
    """Sign every request of the window (flushed counters, refreshed window)."""
    if params.kappa == 1:
        return Signatures(_hottest(window.numbers, counters))
    return _sign_in_order(window, counters, params)


def _hottest(numbers: Ints, counters: SegmentCounters) -> Ints:
    """κ = 1 needs no order: the number of highest P(r; ∅) in each column.

    Columns are sorted by rank, so the first of equals is the one first seen.
    """
    columns = numbers.shape[1]
    row = counters.signing.take(numbers).argmax(axis=0)
    hottest: Ints = numbers.ravel().take(row * columns + np.arange(columns))
    return hottest


def _sign_in_order(window: Window, counters: SegmentCounters, params: QasParams) -> Signatures:
    """Any κ: serialize request by request, but only those with a segment whose P(r; ∅) changed."""
    changed_at = counters.changed_at.take(window.numbers).max(axis=0).tolist()
    code_of: dict[Numbers, int] = {}
    codes = np.empty(window.columns, dtype=np.int64)
    for column in range(window.columns):
        entry = window.entry(column)
        if entry.signed_at < changed_at[column]:
            order = serialize(entry, counters, params)
            entry.signature = top([entry.slots[i] for i in order], counters, params.kappa)
            entry.signed_at = counters.flushes
        codes[column] = code_of.setdefault(entry.signature, len(code_of))
    return Signatures(codes, list(code_of))
