"""The demand table that travels with a plan: P̂ of the segments a replica should keep (eq. 9, 13).

Computes rows from counters and planned columns; who gets a table and when is the policy's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from prism_ray.model import Demand
from prism_ray.qas.counters import Floats, Ints, SegmentCounters, distinct


class TableBuilder:
    """Builds the rows of demand tables; holds scratch arrays so that a table allocates little.

    P̂(r) = w_a A(r) + w_n N(r) + w_g G(r), with A of this replica and G of all (A18).

    N, our reading of A7 and A17 together: lanes make the batch a run of B_max dispatches, so
    B_dispatch is the replica's last B_max dispatches, those of this round included. For a segment in
    none of them N counts the predicted next B_max requests instead (A17).

    ``next_use`` counts along the planned order: this round's requests to the replica are 0, 1, …, and
    the predicted ones follow.

    Rows: every segment of B_dispatch, of this round and of the prediction, then as many others as
    ``rows_max`` leaves room for, highest P̂ first among segments active here or in the scan window;
    sorted by P̂ descending, equal ones in a fixed order.
    """

    def __init__(self, counters: SegmentCounters, rows_max: int) -> None:
        self._counters = counters
        self._rows_max = rows_max
        self._demand = np.zeros(0)
        self._first_use = np.zeros(0, dtype=np.int64)
        self._seen = np.zeros(0, dtype=np.bool_)

    def rows(
        self,
        active: Mapping[int, int],
        batch: Mapping[int, int],
        planned: Ints,
        sent: int,
        window: Ints,
    ) -> tuple[Demand, ...]:
        """Rows of one replica's table.

        ``active`` and ``batch`` are A and N(r; B_dispatch) of this replica by segment number.
        ``planned`` is a matrix [segments, requests] in planned order, this round's ``sent`` requests
        first. ``window`` are the distinct segments of the scan window.
        """
        self._make_room()
        weights = self._counters.weights
        here, active_counts = _arrays(active)
        dispatched, batch_counts = _arrays(batch)
        in_order = planned.T.ravel()
        ahead = planned[:, sent:].ravel()
        self._demand[here] = weights.active * active_counts
        self._demand[dispatched] += weights.next * batch_counts
        self._first_use[dispatched] = _NOT_PLANNED
        np.add.at(
            self._demand, ahead.compress(self._first_use.take(ahead) == _UNWANTED), weights.next
        )
        # Backwards: of several positions written to one cell the last one stays.
        self._first_use[in_order[::-1]] = np.arange(len(in_order))[::-1] // len(planned)
        try:
            return self._rows(self._candidates(window, here, dispatched))
        finally:
            touched = np.concatenate([here, dispatched, in_order])
            self._demand[touched] = 0
            self._first_use[touched] = _UNWANTED

    def _candidates(self, window: Ints, *others: Ints) -> Ints:
        """Distinct union: the window's segments and those of the others that it lacks.

        This round's and the predicted requests are in the window, so their segments are too.
        """
        self._seen[window] = True
        rest = np.concatenate(others)
        rest = rest.compress(~self._seen.take(rest))
        self._seen[window] = False
        return np.concatenate([window, distinct(rest)])

    def _rows(self, numbers: Ints) -> tuple[Demand, ...]:
        priority = self._demand.take(numbers) + self._counters.queued_priority.take(numbers)
        if len(numbers) > self._rows_max:
            chosen = self._best(priority, self._first_use.take(numbers) != _UNWANTED)
            numbers, priority = numbers.take(chosen), priority.take(chosen)
        order = (-priority).argsort(kind="stable")
        numbers = numbers.take(order)
        ids = self._counters.ids
        rows = zip(
            map(ids.__getitem__, numbers.tolist()),
            priority.take(order).tolist(),
            np.maximum(self._first_use.take(numbers), _NOT_PLANNED).tolist(),
            strict=True,
        )
        return tuple(map(_new_row, rows))

    def _best(self, priority: Floats, wanted: npt.NDArray[np.bool_]) -> Ints:
        """Indexes of the ``rows_max`` best: the wanted before others, then by P̂."""
        count = self._rows_max
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        key = np.where(wanted, np.inf, priority)
        at = len(key) - count
        least = np.partition(key, at)[at]
        if least == np.inf:
            key = np.where(wanted, priority, -np.inf)
            least = np.partition(key, at)[at]
        above = (key > least).nonzero()[0]
        equal = (key == least).nonzero()[0]
        return np.concatenate([above, equal[: count - len(above)]])

    def _make_room(self) -> None:
        size = len(self._counters.priority)
        if len(self._demand) < size:
            self._demand = np.zeros(size)
            self._first_use = np.full(size, _UNWANTED, dtype=np.int64)
            self._seen = np.zeros(size, dtype=np.bool_)


_NOT_PLANNED = -1
_UNWANTED = -2

_new_row = partial(tuple.__new__, Demand)
"""Demand from a tuple; half the cost of calling the class, and a table has hundreds of rows."""


def _arrays(counts: Mapping[int, int]) -> tuple[Ints, Ints]:
    return (
        np.fromiter(counts.keys(), dtype=np.int64, count=len(counts)),
        np.fromiter(counts.values(), dtype=np.int64, count=len(counts)),
    )
