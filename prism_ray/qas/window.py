"""The queue, and the scan window over its oldest requests as one matrix of segment numbers.

Keeps order and arrays only; what a segment is worth is the counters' business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from prism_ray.model import Order, Ticket
from prism_ray.qas.counters import NO_SEGMENT, Ints, Numbers

_NUMBERS = 2
"""First row of numbers in the window's matrix, below the rows of places and lengths."""


@dataclass(slots=True, eq=False)
class Entry:
    """A queued or active request: its ticket and the numbers of its segments.

    ``slots`` has the number of each segment of the skeleton, ``numbers`` each once, by rank.
    ``place`` orders the queue. ``order`` is set while queued only if alignment is frozen at arrival.
    ``signature``, as numbers, is the one it had at the counters' flush ``signed_at``.
    """

    ticket: Ticket
    slots: Numbers
    numbers: Numbers
    order: Order | None = None
    place: int = 0
    signature: Numbers = ()
    signed_at: int = -1


class Window:
    """Queued requests in order; the oldest ``limit`` of them (None: all) are columns of arrays.

    After ``refresh``: ``numbers`` is a matrix [most segments of a request, columns] of distinct
    segment numbers, column 0 the oldest; ``lengths[c]`` is how many of a column's cells are used.
    ``version`` changes whenever a column does. Adding and removing cost O(1), ``refresh`` O(columns)
    of plain copying whatever the length of the queue.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._by_id: dict[str, Entry] = {}
        self._inside: dict[int, Entry] = {}
        self._backlog: OrderedDict[str, Entry] = OrderedDict()
        self._at_head: dict[str, Entry] = {}
        self._left: list[int] = []
        self._first_place = 0
        self._next_place = 1
        self.version = 0
        self._show(np.zeros((_NUMBERS + 1, 0), dtype=np.int64))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __iter__(self) -> Iterator[Entry]:
        """All queued requests in queue order."""
        yield from reversed(self._at_head.values())
        for place in sorted(self._inside):
            yield self._inside[place]
        yield from self._backlog.values()

    def get(self, request_id: str) -> Entry | None:
        """A queued request by its id."""
        return self._by_id.get(request_id)

    def entry(self, column: int) -> Entry:
        """The request in a column of the last refresh, if it has not left since."""
        return self._inside[int(self._places[column])]

    def column(self, ticket: Ticket) -> int | None:
        """Where a queued ticket stands since the last refresh; None if it isn't in the arrays."""
        entry = self._by_id.get(ticket.request_id)
        if entry is None or entry.ticket is not ticket or entry.place not in self._inside:
            return None
        return int(self._places.searchsorted(entry.place))

    def add(self, entry: Entry, *, at_head: bool = False) -> None:
        """Queue a request behind all others, or before all others."""
        request_id = entry.ticket.request_id
        self._by_id[request_id] = entry
        if at_head:
            entry.place = self._first_place
            self._first_place -= 1
            self._at_head[request_id] = entry
        else:
            entry.place = self._next_place
            self._next_place += 1
            self._backlog[request_id] = entry

    def remove(self, request_id: str) -> Entry | None:
        """Forget a queued request; None if it is not queued."""
        entry = self._by_id.pop(request_id, None)
        if entry is None:
            return None
        if self._inside.pop(entry.place, None) is not None:
            self._left.append(entry.place)
        elif self._backlog.pop(request_id, None) is None:
            del self._at_head[request_id]
        return entry

    def refresh(self) -> None:
        """Bring the arrays up to date: the oldest ``limit`` queued requests, in queue order."""
        before = list(reversed(self._at_head.values()))
        kept = self._columns_kept()
        if self._limit is not None and len(before) + len(kept) > self._limit:
            kept = self._push_back(kept, self._limit - len(before))
            before = self._push_back_entries(before, self._limit)
        after = self._pull(len(before) + len(kept))
        if before or after or len(kept) != self.columns:
            self._splice(before, kept, after)
            self.version += 1
        self._at_head.clear()
        self._left.clear()

    def check_integrity(self) -> None:
        """AssertionError unless the arrays show the oldest requests in order."""
        self.refresh()
        entries = list(self)
        assert len(entries) == len(self._by_id)
        assert all(self._by_id[e.ticket.request_id] is e for e in entries)
        places = [e.place for e in entries]
        assert places == sorted(set(places)), "the queue is out of order"
        oldest = entries if self._limit is None else entries[: self._limit]
        assert self.columns == len(oldest) == len(self._inside)
        for column, entry in enumerate(oldest):
            assert self.entry(column) is entry
            length = int(self.lengths[column])
            assert tuple(self.numbers[:length, column].tolist()) == entry.numbers
            assert not self.numbers[length:, column].any()

    def _columns_kept(self) -> Ints:
        if not self._left:
            return np.arange(self.columns)
        keep = np.ones(self.columns, dtype=np.bool_)
        keep[self._places.searchsorted(self._left)] = False
        return keep.nonzero()[0]

    def _push_back(self, kept: Ints, room: int) -> Ints:
        """Columns that requests at the head push out of the window return to the backlog."""
        room = max(0, room)
        for column in reversed(kept[room:].tolist()):
            entry = self._inside.pop(int(self._places[column]))
            self._to_backlog_front(entry)
        return kept[:room]

    def _push_back_entries(self, before: list[Entry], room: int) -> list[Entry]:
        for entry in reversed(before[room:]):
            self._to_backlog_front(entry)
        return before[:room]

    def _to_backlog_front(self, entry: Entry) -> None:
        self._backlog[entry.ticket.request_id] = entry
        self._backlog.move_to_end(entry.ticket.request_id, last=False)

    def _pull(self, columns: int) -> list[Entry]:
        """The oldest of the backlog for which the window has room."""
        room = len(self._backlog)
        if self._limit is not None:
            room = min(room, self._limit - columns)
        return [self._backlog.popitem(last=False)[1] for _ in range(room)]

    def _splice(self, before: list[Entry], kept: Ints, after: list[Entry]) -> None:
        """New columns around the kept ones; one matrix, so that it is one copy."""
        longest = max((len(e.numbers) for e in chain(before, after)), default=0)
        rows = max(longest, int(self.lengths.max(initial=1)))
        middle = self._matrix[: _NUMBERS + rows].take(kept, axis=1)
        if len(middle) < _NUMBERS + rows:
            middle = np.pad(middle, ((0, _NUMBERS + rows - len(middle)), (0, 0)))
        parts = [_columns(before, rows)] if before else []
        self._show(np.concatenate([*parts, middle, _columns(after, rows)], axis=1))
        for entry in chain(before, after):
            self._inside[entry.place] = entry

    def _show(self, matrix: Ints) -> None:
        self._matrix = matrix
        self._places: Ints = matrix[0]
        self.lengths: Ints = matrix[1]
        self.numbers: Ints = matrix[_NUMBERS:]
        self.columns = matrix.shape[1]


def _columns(entries: list[Entry], rows: int) -> Ints:
    """Matrix [place, length, ``rows`` numbers filled up with NO_SEGMENT; one column an entry]."""
    width = _NUMBERS + rows
    filler = (NO_SEGMENT,) * rows
    cells = [(e.place, len(e.numbers), *e.numbers, *filler)[:width] for e in entries]
    return np.array(cells, dtype=np.int64).reshape(len(entries), width).T
