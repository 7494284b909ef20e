from __future__ import annotations

from prism_ray.model import Demand, DemandTable
from prism_ray.tenancy.tables import DemandTables, Part


def part(*rows: tuple[str, float, int], at: list[int]) -> Part:
    return Part(DemandTable(1, tuple(Demand(s.encode(), p, n) for s, p, n in rows)), at)


def shown(table: DemandTable) -> list[tuple[str, int]]:
    return [(row.segment.decode(), row.next_use) for row in table.rows]


def test_one_tenants_table_goes_through_as_it_is() -> None:
    tables = DemandTables()
    own = part(("x", 3.0, 0), ("y", 3.0, 5), ("w", 1.0, -1), at=[0, 1])
    assert tables.merge("r", {b"a": own}, 2) == DemandTable(1, own.table.rows)
    assert tables.merge("r", {b"a": own}, 2).version == 2


def test_positions_are_those_of_the_whole_plan() -> None:
    tables = DemandTables()
    a = part(("x", 9.0, 0), ("y", 5.0, 2), at=[0, 2])
    b = part(("u", 7.0, 0), ("v", 1.0, -1), at=[1])
    # Two rows of each would be four; the longest single table bounds the merged one.
    assert shown(tables.merge("r", {b"a": a, b"b": b}, 3)) == [("x", 0), ("u", 1)]
    wide = part(("x", 9.0, 0), ("y", 5.0, 2), ("z", 4.0, -1), ("q", 3.0, 1), at=[0, 2])
    merged = tables.merge("r", {b"a": wide, b"b": b}, 3)
    assert shown(merged) == [("x", 0), ("u", 1), ("y", 3), ("v", -1)]


def test_a_round_for_one_tenant_keeps_what_the_other_wants() -> None:
    tables = DemandTables()
    tables.merge("r", {b"b": part(("u", 7.0, 0), ("v", 2.0, 1), at=[0])}, 1)
    merged = tables.merge("r", {b"a": part(("x", 1.0, 0), ("y", 0.5, -1), at=[0])}, 1)
    assert merged.version == 2
    assert shown(merged) == [("u", -1), ("x", 0)]
    tables.forget_tenant(b"b")
    merged = tables.merge("r", {b"a": part(("x", 1.0, 0), at=[0])}, 1)
    assert shown(merged) == [("x", 0)]
    tables.check_integrity({b"a"})


def test_every_tenant_has_its_best_rows_in_the_table() -> None:
    tables = DemandTables()
    loud = part(*((f"a{n}", 1e6, -1) for n in range(8)), at=[0])
    quiet = part(*((f"b{n}", 1.0, -1) for n in range(8)), at=[1])
    names = [name for name, _ in shown(tables.merge("r", {b"a": loud, b"b": quiet}, 2))]
    assert names == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]


def test_replicas_have_versions_of_their_own_and_are_forgotten() -> None:
    tables = DemandTables()
    own = part(("x", 3.0, 0), at=[0])
    tables.merge("r1", {b"a": own}, 1)
    tables.merge("r1", {b"a": own}, 1)
    assert tables.merge("r2", {b"a": own}, 1).version == 1
    tables.forget_replica("r1")
    assert tables.merge("r1", {b"a": own}, 1).version == 1
