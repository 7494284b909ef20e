"""prism picks whom its definition picks, written as it says, over random lives."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest

from prism_ray.model import NO_GAP, Lane, Segment, Skeleton, Ticket
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Match

from .twin import Params, Path, World, front, round_of, segments, tokens

LENGTHS = {name: 10 + 7 * (number % 5) for number, name in enumerate("abcdefg")}


class Cache:
    """Fronts that are cached, and fronts that are being computed."""

    def __init__(self, cached: list[Path], computing: list[Path]) -> None:
        self._cached = fronts(cached)
        self._computing = self._cached | fronts(computing)

    def match(self, path: Path) -> Match:
        return Match(longest(path, self._cached), longest(path, self._computing))


def fronts(paths: list[Path]) -> set[Path]:
    return {path[: n + 1] for path in paths for n in range(len(path))}


def longest(path: Path, known: set[Path]) -> int:
    return max((tokens(path[:n]) for n in range(1, len(path) + 1) if path[:n] in known), default=0)


def random_ticket(rng: Random, name: str, movable: float) -> Ticket:
    run = 0 if rng.random() < movable else None
    letters = rng.sample(sorted(LENGTHS), rng.randint(1, 5))
    system = Segment(rng.choice([b"S", b"T"]), 24) if rng.random() < 0.5 else None
    pieces = tuple(Segment(x.encode(), LENGTHS[x], run=run) for x in letters)
    return Ticket(name, Skeleton(system, pieces, (NO_GAP,) * len(pieces), rng.randint(0, 20)), 0.0)


def random_cache(rng: Random, world: World) -> Cache:
    """Some of what was sent, cut short, and some that never was."""
    known = [*world.sent, *((*front(t), *segments(t)) for t in world.queue)]
    cut = [path[: rng.randint(0, len(path))] for path in sorted(known) if rng.random() < 0.3]
    rng.shuffle(cut)
    return Cache(cut[len(cut) // 3 :], cut[: len(cut) // 3])


def live(
    params: Params, seed: int, *, movable: float = 0.8, rounds: int = 25, arrivals: int = 5
) -> int:
    """One life, lived by both; how many went as overdue."""
    rng = Random(seed)
    scheduler = make_scheduler("prism", asdict(params))
    world = World(params)
    names, sent, late = 0, 0, 0
    for _ in range(rounds):
        for _ in range(rng.randint(0, arrivals)):
            names += 1
            ticket = random_ticket(rng, f"q{names}", movable)
            at_head = rng.random() < 0.1
            scheduler.add(ticket, at_head=at_head)
            world.arrive(ticket, at_head)
        if world.queue and rng.random() < 0.2:
            gone = world.queue.pop(rng.randrange(len(world.queue)))
            assert scheduler.cancel(gone.request_id)
        cache, count = random_cache(rng, world), rng.randint(0, 6)
        expected = [
            (g.ticket.request_id, g.path, Lane.COLD if overdue else Lane.HOT, float(g.cached))
            for g, overdue in round_of(world, cache, count)
        ]
        opened = scheduler.open_round({"r": cache})
        for each in expected:
            pick = opened.peek("r")
            assert pick is not None
            skeleton = pick.ticket.skeleton
            assert (
                pick.ticket.request_id,
                skeleton.path(pick.order),
                pick.lane,
                pick.score,
            ) == each
            opened.take("r", pick)
        opened.close()
        scheduler.check_integrity()
        sent += len(expected)
        late += sum(lane is Lane.COLD for _, _, lane, _ in expected)
    assert sent > rounds, "hardly anybody was picked"
    return late


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("order", ["arrival", "match"])
def test_a_round_sends_what_the_twin_sends_as_the_twin_writes_it(order: str, seed: int) -> None:
    live(Params(order=order), seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "params",
    [
        Params(share=False),
        Params(pioneer=False, order="match"),
        Params(window_max=4),
        Params(half_life=3),
    ],
    ids=["share", "pioneer", "window", "popularity"],
)
def test_without_an_ingredient_too(params: Params, seed: int) -> None:
    live(params, seed)


@pytest.mark.parametrize("seed", range(8))
def test_many_that_share_with_many_are_planned_together(seed: int) -> None:
    live(Params(), seed, movable=1.0, arrivals=16)


def test_overdue_requests_go_by_the_twins_right() -> None:
    params = Params(order="match", overdue_after_tokens=0, overdue_share=0.5)
    late = sum(live(params, seed, rounds=60) for seed in range(6))
    assert late > 10, "somebody was overdue"


def test_prompts_that_cannot_move_go_as_the_twin_says() -> None:
    live(Params(order="match"), 3, movable=0.0)
