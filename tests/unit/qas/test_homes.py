"""QAS over many replicas with homes: one plan, dealt out to the replicas whose requests they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prism_ray.model import Lane

from .scenes import NoCache, add, names, qas, take

LETTERS = st.lists(st.text("abcd", min_size=1, max_size=3), min_size=1, max_size=12)


def window(letters: list[str]) -> list[str]:
    return [f"{number}:{''.join(sorted(set(each)))}" for number, each in enumerate(letters)]


@given(LETTERS)
def test_where_all_are_at_home_with_one_replica_homes_change_nothing(letters: list[str]) -> None:
    told, blind = qas(), qas()
    for scheduler in (told, blind):
        add(scheduler, *window(letters))
    homes = {str(number): "r" for number in range(len(letters))}
    with_homes = told.open_round({"r": NoCache()}, homes)
    without = blind.open_round({"r": NoCache()})
    for opened in (with_homes, without):
        take(opened, len(letters) // 2 + 1, "r")
    assert with_homes.close() == without.close()
    assert [t.request_id for t in told.waiting()] == [t.request_id for t in blind.waiting()]


@given(LETTERS, st.lists(st.sampled_from("rs-"), min_size=12, max_size=12))
def test_each_replica_gets_its_own_in_the_order_of_the_whole_plan(
    letters: list[str], where: list[str]
) -> None:
    scheduler = qas()
    add(scheduler, *window(letters))
    homes = {str(n): where[n] for n in range(len(letters)) if where[n] != "-"}
    opened = scheduler.open_round({"r": NoCache(), "s": NoCache()}, homes)
    plan = [
        opened.plan.entry(column).ticket.request_id
        for column in opened.plan.columns(Lane.HOT, len(letters))
    ]
    for replica in "sr":
        got = names(take(opened, len(letters), replica))
        assert sorted(got) == sorted(name for name, home in homes.items() if home == replica)
        if len(got) < 16:  # before the first cold slot of the lanes
            assert got == [name for name in plan if homes.get(name) == replica]
    opened.close()
    assert {t.request_id for t in scheduler.waiting()} == {
        str(n) for n in range(len(letters)) if where[n] == "-"
    }
    scheduler.check_integrity()


def test_lanes_are_counted_at_each_replica() -> None:
    scheduler = qas(batch_max=4, q_cold=1)
    add(scheduler, *(f"{n}:a" for n in range(8)))
    homes = {str(n): "rs"[n % 2] for n in range(8)}
    opened = scheduler.open_round({"r": NoCache(), "s": NoCache()}, homes)
    lanes = {replica: [pick.lane for pick in take(opened, 4, replica)] for replica in "rs"}
    assert lanes["r"] == lanes["s"] == [Lane.HOT, Lane.HOT, Lane.HOT, Lane.COLD]
