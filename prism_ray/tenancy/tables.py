"""Demand tables of several tenants as one table per replica. Computes no demand: policies do.

A replica's cache keeps what its newest table asks for, so a round that served one tenant must not
drop what the others still want there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from prism_ray.model import Demand, DemandTable

Rows = tuple[Demand, ...]


class Part(NamedTuple):
    """One tenant's newest table for a replica, and where in the plan its requests were placed."""

    table: DemandTable
    positions: Sequence[int]


class DemandTables:
    """The newest rows of each tenant at each replica, and each replica's table version."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[bytes, Rows]] = {}
        self._versions: dict[str, int] = {}

    def merge(self, replica: str, parts: Mapping[bytes, Part], sent: int) -> DemandTable:
        """The replica's next table, of the round that dispatched ``sent`` requests to it.

        It has as many rows as the longest of the tenants' tables, each tenant's best in turn. Rows
        of tenants that this round did not serve are those of their last one, without a position.
        """
        kept = self._rows.setdefault(replica, {})
        version = self._versions[replica] = self._versions.get(replica, 0) + 1
        placed = {tenant: _placed(part, sent) for tenant, part in parts.items()}
        earlier = {t: _unplaced(rows) for t, rows in kept.items() if t not in parts}
        kept.update({tenant: part.table.rows for tenant, part in parts.items()})
        everyone = earlier | placed
        return DemandTable(version, _interleaved(list(everyone.values())))

    def forget_tenant(self, tenant: bytes) -> None:
        """The tenant wants nothing any more."""
        for rows in self._rows.values():
            rows.pop(tenant, None)

    def forget_replica(self, replica: str) -> None:
        self._rows.pop(replica, None)
        self._versions.pop(replica, None)

    def check_integrity(self, tenants: set[bytes]) -> None:
        """AssertionError if rows are kept of tenants that have nothing waiting or active."""
        assert set(chain.from_iterable(self._rows.values())) <= tenants


def _placed(part: Part, sent: int) -> Rows:
    """Positions among one tenant's requests become positions among all of the plan's.

    What is predicted to follow comes after the whole plan.
    """
    own = len(part.positions)
    if own == sent:
        return part.table.rows
    return tuple(
        row._replace(
            next_use=part.positions[row.next_use]
            if row.next_use < own
            else sent + row.next_use - own
        )
        if row.next_use >= 0
        else row
        for row in part.table.rows
    )


def _unplaced(rows: Rows) -> Rows:
    return tuple(row if row.next_use < 0 else row._replace(next_use=-1) for row in rows)


def _interleaved(tables: list[Rows]) -> Rows:
    if len(tables) == 1:
        return tables[0]
    limit = max((len(rows) for rows in tables), default=0)
    turns = chain.from_iterable(zip_longest(*tables))
    best = [row for row in turns if row is not None][:limit]
    best.sort(key=lambda row: (-row.priority, row.segment))
    return tuple(best)
