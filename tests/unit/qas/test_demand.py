"""Demand tables: P̂ of this replica's batch and of what comes next, taken before the batch moves."""

from __future__ import annotations

from typing import Any

from prism_ray.model import Demand, DemandTable
from prism_ray.qas import Qas

from .scenes import NoCache, add, dispatch, qas, take

WEIGHTS = {"w_active": 10_000.0, "w_next": 100.0, "w_global": 1.0}


def scheduler_of(*requests: str, **params: Any) -> Qas:
    scheduler = qas(**{"q_cold": 0, "batch_max": 4, **WEIGHTS, **params})
    add(scheduler, *requests)
    return scheduler


def rows(table: DemandTable) -> dict[str, tuple[float, int]]:
    return {row.segment.decode(): (row.priority, row.next_use) for row in table.rows}


def table_of(scheduler: Qas, count: int, replica: str = "r") -> dict[str, tuple[float, int]]:
    return rows(dispatch(scheduler, count, replica)[1][replica])


def test_the_batch_counts_as_next_and_still_as_queued() -> None:
    scheduler = scheduler_of("1:ab", "2:ac")
    assert table_of(scheduler, 2) == {"a": (202.0, 0), "b": (101.0, 0), "c": (101.0, 1)}


def test_taken_after_the_move_the_batch_counts_as_active() -> None:
    scheduler = scheduler_of("1:ab", "2:ac", table_taken="after")
    assert table_of(scheduler, 2) == {
        "a": (20_200.0, 0),
        "b": (10_100.0, 0),
        "c": (10_100.0, 1),
    }


def test_segments_outside_the_batch_count_over_the_predicted_next_batch() -> None:
    scheduler = scheduler_of("1:a", "2:a", "3:b", "4:b", "5:c", "6:d", "7:e")
    table = table_of(scheduler, 1)
    assert table["a"] == (102.0, 0), "in the batch: N over the batch only"
    assert table["b"] == (202.0, 2), "predicted: a's second request, then both of b"
    assert table["c"] == (101.0, 4)
    assert table["d"] == (1.0, -1), "beyond the next four requests"


def test_without_prediction_only_the_batch_is_next() -> None:
    scheduler = scheduler_of("1:a", "2:a", "3:b", predict_next=False)
    assert table_of(scheduler, 1) == {"a": (102.0, 0), "b": (1.0, -1)}


def test_the_batch_is_a_run_of_batch_max_dispatches_over_rounds() -> None:
    scheduler = scheduler_of(*(f"{i}:a" for i in range(6)), batch_max=2)
    expected = [100.0 + 6, 10_000 + 200 + 5, 20_000 + 200 + 4]
    assert [table_of(scheduler, 1)["a"][0] for _ in range(3)] == expected


def test_a_finished_dispatch_of_the_last_batch_still_counts_as_next() -> None:
    scheduler = scheduler_of("1:a")
    dispatch(scheduler, 1)
    scheduler.finish("1")
    add(scheduler, "2:b")
    assert table_of(scheduler, 1) == {"a": (100.0, -1), "b": (101.0, 0)}


def test_active_and_next_are_the_replicas_own_and_queued_is_global() -> None:
    scheduler = scheduler_of("1:a", "2:a", "3:a")
    table_of(scheduler, 1, "r1")
    table = table_of(scheduler, 1, "r2")
    assert table["a"] == (100.0 + 2, 0), "r2 has nothing active and one dispatch"
    assert table_of(scheduler, 1, "r1")["a"] == (10_000.0 + 200 + 1, 0)


def test_two_replicas_of_one_round_get_tables_of_the_same_moment() -> None:
    scheduler = scheduler_of("1:a", "2:a")
    opened = scheduler.open_round({"r1": NoCache(), "r2": NoCache()})
    take(opened, 1, "r1")
    take(opened, 1, "r2")
    tables = opened.close()
    assert rows(tables["r1"]) == rows(tables["r2"]) == {"a": (102.0, 0)}


def test_active_segments_that_nobody_waits_for_are_among_the_others() -> None:
    scheduler = scheduler_of("1:a", batch_max=1)
    dispatch(scheduler, 1)
    add(scheduler, "2:b")
    assert table_of(scheduler, 1) == {"a": (10_000.0, -1), "b": (101.0, 0)}


def test_rows_are_bounded_and_the_batch_goes_first() -> None:
    scheduler = scheduler_of("1:a", "2:b", "3:b", "4:b", "5:c", batch_max=1, table_rows_max=2)
    dispatch(scheduler, 1)  # b, now active
    scheduler.cancel("3")
    scheduler.cancel("4")
    table = table_of(scheduler, 1)
    assert table == {"a": (101.0, 0), "c": (101.0, 1)}, "b is active, but neither sent nor next"


def test_a_batch_larger_than_the_table_keeps_its_best() -> None:
    scheduler = scheduler_of("1:ab", "2:ac", table_rows_max=1)
    assert table_of(scheduler, 2) == {"a": (202.0, 0)}
    scheduler = scheduler_of("1:ab", table_rows_max=0)
    assert table_of(scheduler, 1) == {}


def test_rows_come_highest_first_and_versions_count_up_per_replica() -> None:
    scheduler = scheduler_of("1:ab", "2:ac", "3:ad")
    _, tables = dispatch(scheduler, 1, "r1")
    assert tables["r1"].version == 1
    priorities = [row.priority for row in tables["r1"].rows]
    assert priorities == sorted(priorities, reverse=True)
    assert all(type(row) is Demand for row in tables["r1"].rows)
    assert dispatch(scheduler, 1, "r2")[1]["r2"].version == 1
    assert dispatch(scheduler, 1, "r1")[1]["r1"].version == 2


def test_a_replica_that_was_given_nothing_gets_no_table() -> None:
    scheduler = scheduler_of("1:a")
    opened = scheduler.open_round({"r1": NoCache(), "r2": NoCache()})
    take(opened, 1, "r1")
    assert set(opened.close()) == {"r1"}
