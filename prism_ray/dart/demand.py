"""The demand table as a cache sees it: the newest plan's P̂, decaying by requests; no tree, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_ray.dart.future import Future
from prism_ray.dart.node import NodeView
from prism_ray.model import Demand, DemandTable, SegmentId


class DemandState:
    """Answers "how much is this segment wanted": the rows of the newest table, halved with age.

    A newer version replaces all rows: P̂ is a snapshot, and what the snapshot leaves out is not wanted
    (within its bound). Older and equal versions are ignored; versions count within an ``epoch`` of
    their scheduler, another epoch starts anew. Age is the number of requests seen since the table
    (choice A20): all rows halve per ``half_life_requests``, so their order holds until they are
    forgotten together after ``forget_after_requests``, which falls back to recency (choice A13).

    A row's key is a segment (its text, wherever it stands) or a path key (this very place); of a node
    that has both, the place's row counts. ``future`` is for the one strategy that knows it.
    """

    def __init__(
        self,
        *,
        max_rows: int = 4096,
        half_life_requests: int = 256,
        forget_after_requests: int = 2048,
        future: Future | None = None,
    ) -> None:
        if min(max_rows, half_life_requests, forget_after_requests) < 1:
            raise ValueError("max_rows, half_life_requests and forget_after_requests must be ≥ 1")
        self.future = future
        self._max_rows = max_rows
        self._half_life = half_life_requests
        self._forget_after = forget_after_requests
        self._rows: dict[SegmentId, Demand] = {}
        self._epoch = ""
        self._version: int | None = None
        self._age = 0

    @property
    def version(self) -> int | None:
        """Version of the table in force, None before the first."""
        return self._version

    @property
    def age_requests(self) -> int:
        return self._age

    def __len__(self) -> int:
        return len(self._rows)

    def segments(self) -> tuple[SegmentId, ...]:
        """Keys of wanted rows (P̂ > 0), segments and places, in the table's own order."""
        return tuple(row.segment for row in self._rows.values() if row.priority > 0)

    def priority(self, segment: SegmentId | None) -> float:
        """P̂ of a segment now; 0 for private tokens and unknown segments."""
        row = self._rows.get(segment) if segment is not None else None
        if row is None:
            return 0.0
        return row.priority * 0.5 ** (self._age // self._half_life)

    def stored_priority(self, segment: SegmentId | None) -> float:
        """P̂ without its decay: the same order, and constant while the table is in force."""
        row = self._rows.get(segment) if segment is not None else None
        return 0.0 if row is None else row.priority

    def next_use(self, segment: SegmentId | None) -> int:
        """Place of the first planned request that uses the segment, -1 if none is known."""
        row = self._rows.get(segment) if segment is not None else None
        return -1 if row is None else row.next_use

    def row(self, node: NodeView) -> Demand | None:
        """What the table says of a node: of its place if it has a row for that, else of its segment."""
        rows = self._rows
        if node.path_key is not None and (row := rows.get(node.path_key)) is not None:
            return row
        return rows.get(node.segment) if node.segment is not None else None

    def wants(self, node: NodeView) -> float:
        """P̂ of a node, not decayed: constant while the table is in force."""
        row = self.row(node)
        return 0.0 if row is None else row.priority

    def is_news(self, version: int, epoch: str = "") -> bool:
        """Whether a table of that version would be taken."""
        return self._version is None or epoch != self._epoch or version > self._version

    def apply(self, table: DemandTable, epoch: str = "") -> tuple[SegmentId, ...] | None:
        """Take a table; the segments whose row changed, or None if the table is not news."""
        if not self.is_news(table.version, epoch):
            return None
        self._epoch = epoch
        self._version = table.version
        self._age = 0
        before = self._rows
        self._rows = {row.segment: row for row in table.rows[: self._max_rows]}
        gone = [segment for segment in before if segment not in self._rows]
        new = [segment for segment, row in self._rows.items() if before.get(segment) != row]
        return (*gone, *new)

    def observe_request(self) -> tuple[SegmentId, ...]:
        """Count one admitted request; the segments that are forgotten by it (usually none)."""
        self._age += 1
        if self._age < self._forget_after or not self._rows:
            return ()
        forgotten = tuple(self._rows)
        self._rows = {}
        return forgotten


def parse_hints(payload: Mapping[str, Any]) -> tuple[DemandTable, str] | None:
    """Read a hint payload: ``{"version": int, "rows": [[segment, P̂, next_use], ...], "epoch": str}``.

    Segments are bytes or hex text; ``next_use`` and ``epoch`` may be left out. Without ``rows`` the
    payload only names a version that travelled with another request: None. Raises ValueError.
    """
    if "rows" not in payload:
        return None
    version, epoch = payload.get("version"), payload.get("epoch", "")
    if not isinstance(version, int) or not isinstance(epoch, str):
        raise ValueError("hints need an integer version, and an epoch that is text")
    try:
        rows = tuple(_row(*row) for row in payload["rows"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"hint rows are [segment, priority, next_use]: {error}") from None
    return DemandTable(version, rows), epoch


def _row(segment: bytes | str, priority: float, next_use: int = -1) -> Demand:
    key = bytes.fromhex(segment) if isinstance(segment, str) else bytes(segment)
    return Demand(key, float(priority), int(next_use))


def dump_hints(table: DemandTable, epoch: str = "") -> dict[str, Any]:
    """The inverse of ``parse_hints``, JSON-ready."""
    return {
        "version": table.version,
        "epoch": epoch,
        "rows": [[row.segment.hex(), row.priority, row.next_use] for row in table.rows],
    }
