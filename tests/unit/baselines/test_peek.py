"""peek: groups one after another, a pioneer ahead of each, a fairness lane."""

from __future__ import annotations

from prism_ray.dart import Node, PrefixCache, skeleton_anchors
from prism_ray.dart.anchors import path_keys
from prism_ray.model import DemandTable
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Scheduler

from .scenes import Path, ResidentPaths, ticket


def peek(*requests: str, fairness: int = 0) -> Scheduler:
    scheduler = make_scheduler("peek", {"fairness": fairness})
    for request in requests:
        name, letters = request.split(":")
        scheduler.add(ticket(name, letters))
    return scheduler


def path(letters: str) -> Path:
    skeleton = ticket("", letters).skeleton
    return skeleton.path(skeleton.native_order)


def order(scheduler: Scheduler, cache: ResidentPaths, count: int = 99) -> list[str]:
    opened = scheduler.open_round({"r": cache})
    left = []
    while len(left) < count and (pick := opened.peek("r")):
        opened.take("r", pick)
        left.append(pick.ticket.request_id)
    opened.close()
    return left


def test_one_of_a_cold_group_goes_and_the_others_follow_when_its_prefix_is_cached() -> None:
    scheduler = peek("1:ab", "2:ac", "3:xy", "4:ad")
    cold = ResidentPaths()
    assert order(scheduler, cold, 2) == ["1", "3"]
    computing = ResidentPaths(computing=[path("ab"), path("xy")])
    assert order(scheduler, computing, 0) == []
    warm = ResidentPaths(cached=[path("ab"), path("xy")])
    assert order(scheduler, warm) == ["2", "4"]


def test_when_all_wait_for_a_pioneer_the_oldest_goes() -> None:
    scheduler = peek("1:ab", "2:ac")
    assert order(scheduler, ResidentPaths(computing=[path("a")])) == ["1", "2"]


def test_cached_groups_go_first_then_those_that_save_most_each_to_its_end() -> None:
    scheduler = peek("1:xa", "2:ya", "3:zab", "4:yb", "5:xc", "6:zac", "7:yc")
    cache = ResidentPaths(cached=[path("x"), path("y"), path("z")])
    assert order(scheduler, cache) == ["2", "4", "7", "1", "5", "3", "6"]
    scheduler = peek("1:xa", "2:ya", "3:yb", "4:xc", "5:yc")
    warm_x = ResidentPaths(cached=[path("x")])
    assert order(scheduler, warm_x) == ["1", "4", "2", "3", "5"]


def test_every_so_many_dispatches_the_oldest_goes_across_rounds() -> None:
    requests = [f"{n}:{'xy' if n > 2 else 'abc'[n] + 'q'}" for n in range(9)]
    scheduler = peek(*requests, fairness=3)
    cache = ResidentPaths(cached=[path("xy")])
    left = [order(scheduler, cache, 1)[0] for _ in range(7)]
    assert left == ["0", "3", "4", "1", "5", "6", "2"]


def test_the_table_counts_whose_prompts_run_through_each_place() -> None:
    scheduler = peek("1:ab", "2:a", "3:ac", "4:ba")
    opened = scheduler.open_round({"r": ResidentPaths()})
    pick = opened.peek("r")
    assert pick is not None
    opened.take("r", pick)
    table = opened.close()["r"]
    assert isinstance(table, DemandTable)
    expected = {"a": 3, "ab": 1, "ac": 1, "b": 1, "ba": 1}
    assert {row.segment: row.priority for row in table.rows} == {
        path_keys(path(place))[-1]: count for place, count in expected.items()
    }
    scheduler.check_integrity()


def test_text_is_kept_where_prompts_wait_for_it_and_given_up_behind_another_front() -> None:
    scheduler = peek("1:ab", "2:ab", "3:c")
    opened = scheduler.open_round({"r": ResidentPaths()})
    pick = opened.peek("r")
    assert pick is not None
    opened.take("r", pick)
    cache = PrefixCache("dart", pool_tokens=1000, protect_anchors=0)
    for letters in ("ab", "cb", "xb"):  # the newest is what nobody waits for
        skeleton = ticket("", letters).skeleton
        order = skeleton.native_order
        cache.insert(skeleton.path(order), anchors=skeleton_anchors(skeleton, order))
    cache.hint(opened.close()["r"])
    places = [b"".join(path_names(node)).decode() for node in cache.eviction_order()]
    assert places == ["cb", "xb", "x", "c", "ab", "a"]


def path_names(node: Node) -> list[bytes]:
    return [part.segment for part in reversed(list(node.ancestors())) if part.segment]
