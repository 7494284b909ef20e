"""Of requests that share an uncached front one goes first, unless nothing else can run (A16)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prism_ray.model import Atom, Pick
from prism_ray.qas import Qas
from prism_ray.scheduling import Match

from .scenes import add, names, qas, take

Path = tuple[Atom, ...]


@dataclass
class Cache:
    """Holds some paths, is computing others; a match is a longest common prefix."""

    cached: list[str] = field(default_factory=list)
    computing: list[str] = field(default_factory=list)

    def match(self, path: Path) -> Match:
        cached = longest(path, self.cached)
        return Match(cached, max(cached, longest(path, self.computing)))


def longest(path: Path, held: list[str]) -> int:
    letters = "".join(atom.id.decode() for atom in path)
    common = 0
    for other in held:
        while letters[: common + 1] == other[: common + 1] and common < len(letters):
            common += 1
    return sum(atom.tokens for atom in path[:common])


def play(scheduler: Qas, cache: Cache, count: int) -> list[Pick]:
    opened = scheduler.open_round({"r": cache})
    picks = take(opened, count)
    opened.close()
    return picks


def scheduler_of(*requests: str, **params: Any) -> Qas:
    scheduler = qas(**{"pioneer": True, "q_cold": 0, **params})
    add(scheduler, *requests)
    return scheduler


def test_one_goes_and_the_others_of_its_front_wait() -> None:
    scheduler = scheduler_of("1:ab", "2:ab", "3:ab", "4:x", "5:y")
    assert names(play(scheduler, Cache(), 3)) == ["1", "4", "5"]


def test_without_the_rule_the_bucket_goes_together() -> None:
    scheduler = scheduler_of("1:ab", "2:ab", "3:ab", "4:x", "5:y", pioneer=False)
    assert names(play(scheduler, Cache(), 3)) == ["1", "2", "3"]


def test_a_cached_front_lets_all_go() -> None:
    scheduler = scheduler_of("1:ab", "2:ab", "3:ab", "4:x")
    assert names(play(scheduler, Cache(cached=["ab"]), 3)) == ["1", "2", "3"]


def test_a_front_that_is_being_computed_makes_all_wait() -> None:
    scheduler = scheduler_of("1:ab", "2:ab", "3:x")
    assert names(play(scheduler, Cache(computing=["ab"]), 1)) == ["3"]


def test_part_of_a_front_is_enough_to_wait_for() -> None:
    scheduler = scheduler_of("1:ab", "2:ac", "3:x")
    assert names(play(scheduler, Cache(), 2)) == ["1", "3"]


def test_requests_that_part_right_after_what_is_cached_do_not_wait() -> None:
    scheduler = scheduler_of("1:ab", "2:ac", "3:x")
    assert names(play(scheduler, Cache(cached=["a"]), 2)) == ["1", "2"]


def test_when_nothing_else_can_run_the_first_in_line_goes_anyway() -> None:
    scheduler = scheduler_of("1:ab", "2:ab", "3:ab")
    picks = play(scheduler, Cache(), 3)
    assert names(picks) == ["1", "2", "3"]
    assert "all others that were looked at wait" in picks[1].reason


def test_only_so_many_are_held_back() -> None:
    waiting = [f"{n}:ab" for n in range(1, 6)]
    held_three = scheduler_of(*waiting, "6:x", pioneer_look_ahead=3)
    assert names(play(held_three, Cache(), 3)) == ["1", "2", "3"]
    held_four = scheduler_of(*waiting, "6:x", pioneer_look_ahead=4)
    assert names(play(held_four, Cache(), 2)) == ["1", "6"]


def test_the_cold_lane_follows_the_rule_too() -> None:
    scheduler = scheduler_of("1:ab", "2:ab", "3:x", q_cold=4, batch_max=4)
    assert names(play(scheduler, Cache(), 2)) == ["1", "3"]
