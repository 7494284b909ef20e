"""Each peer picks what its definition, recomputed from scratch, picks, over random lives."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from prism_ray.model import Pick, Ticket
from prism_ray.policies import make_scheduler

from . import twins
from .scenes import ResidentPaths, play, random_cache, random_ticket, ticket


class Life:
    """A scheduler and the plain queue beside it; ``step`` plays one round on both."""

    def __init__(self, policy: str, seed: int, params: dict[str, Any] | None = None) -> None:
        self.rng = Random(seed)
        self.scheduler = make_scheduler(policy, params)
        self.queue: list[Ticket] = []
        self.active: list[Ticket] = []
        self.arrived: list[Ticket] = []
        self.processed = 0
        self.at_arrival: dict[str, int] = {}
        self.dispatched = 0
        self.cache = ResidentPaths()
        self._names = 0

    def arrive(self, most: int) -> None:
        for _ in range(self.rng.randint(0, most)):
            self._names += 1
            # ids in an order of their own, so that ties by id and by arrival differ
            name = f"{(self._names * 7919) % 10_000:04d}"
            new = random_ticket(self.rng, name)
            at_head = self.rng.random() < 0.1
            self.scheduler.add(new, at_head=at_head)
            self.arrived.append(new)
            self.queue.insert(0 if at_head else len(self.queue), new)
            self.at_arrival[name] = self.processed

    def leave(self, cancelled: float = 0.3) -> None:
        if self.queue and self.rng.random() < cancelled:
            gone = self.queue.pop(self.rng.randrange(len(self.queue)))
            assert self.scheduler.cancel(gone.request_id)
        while self.active and self.rng.random() < 0.5:
            assert self.scheduler.finish(self.active.pop(0).request_id)

    def round(self, count: int) -> list[Pick]:
        picks = [pick for _, pick in play(self.scheduler, {"r": self.cache}, ["r"] * count)]
        self.scheduler.check_integrity()
        for pick in picks:
            self.queue.remove(pick.ticket)
            self.active.append(pick.ticket)
            cached = twins.cached_tokens(pick.ticket, self.cache)
            self.processed += pick.ticket.skeleton.prompt_tokens - cached
        self.dispatched += len(picks)
        return picks

    def expected(self, policy: str, k: int) -> list[str]:
        match policy:
            case "hrrn":
                return twins.hrrn(self.queue, self.cache, self.processed, self.at_arrival)
            case "k-lpm":
                return twins.k_lpm(self.queue, self.cache, k, self.dispatched)
        twin: twins.Twin = getattr(twins, policy.replace("-", "_"))
        return twin(self.queue, self.cache)


CASES = [
    ("fcfs", {}),
    ("lpm", {}),
    ("lpm-uncapped", {}),
    ("dfs-weight", {}),
    ("hrrn", {}),
    ("k-lpm", {}),
    ("k-lpm", {"k": 1}),
    ("k-lpm", {"k": 5}),
]


@pytest.mark.parametrize(("policy", "params"), CASES)
@pytest.mark.parametrize("seed", range(4))
def test_a_round_takes_what_the_twin_takes(policy: str, params: dict[str, Any], seed: int) -> None:
    life = Life(policy, seed, params)
    for _ in range(40):
        life.arrive(8)
        life.leave()
        life.cache = random_cache(life.rng, life.queue + life.active)
        expected = life.expected(policy, params.get("k", 2))
        count = life.rng.randint(0, 6)
        picks = life.round(count)
        assert [pick.ticket.request_id for pick in picks] == expected[:count]


@pytest.mark.parametrize("fairness", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_peek_splits_its_line_as_it_goes_and_takes_what_the_whole_tree_says(
    fairness: int, seed: int
) -> None:
    life = Life("peek", seed, {"fairness": fairness})
    for _ in range(40):
        life.arrive(12)
        life.leave()
        life.cache = random_cache(life.rng, life.queue + life.active)
        expected = twins.peek(life.queue, life.cache, fairness, life.dispatched)
        count = life.rng.randint(0, 9)
        picks = life.round(count)
        assert [pick.ticket.request_id for pick in picks] == expected[:count]


@pytest.mark.parametrize("seed", range(4))
def test_preble_groups_take_turns_as_the_twin_says_round_after_round(seed: int) -> None:
    life = Life("preble-groups", seed)
    owed: dict[int, int] = {}
    for _ in range(40):
        life.arrive(8)
        life.leave()
        life.cache = random_cache(life.rng, life.queue + life.active)
        count = life.rng.randint(0, 6)
        expected = twins.preble_groups(life.queue, life.cache, count, owed)
        assert [pick.ticket.request_id for pick in life.round(count)] == expected


FRONTS: list[dict[str, Any]] = [
    {},
    {"f_front": 1},
    {"f_front": 0},
    {"w_active": 1.0, "w_global": 2.0},
    {"priority": "lexicographic", "f_front": 2},
]


@pytest.mark.parametrize("params", FRONTS)
@pytest.mark.parametrize("seed", range(3))
def test_front_alignment_sends_the_oldest_with_what_most_ask_for_in_front(
    seed: int, params: dict[str, Any]
) -> None:
    life = Life("front-alignment", seed, params)
    twin = twins.FrontAlignment(**params)
    for _ in range(40):
        life.arrive(6)
        life.leave(cancelled=0.0)  # a segment that was never sent would lose its rank
        twin.see(life.arrived)
        count = life.rng.randint(0, 5)
        expected = twin.order(life.queue, life.active)
        assert [(p.ticket.request_id, p.order) for p in life.round(count)] == expected[:count]


@pytest.mark.parametrize("policy", ["lpm", "hrrn"])
def test_above_128_waiting_stock_policies_are_fcfs(policy: str) -> None:
    life = Life(policy, 0)
    while len(life.queue) <= 128:
        life.arrive(20)
    life.cache = random_cache(life.rng, life.queue)
    oldest = [t.request_id for t in life.queue]
    assert [pick.ticket.request_id for pick in life.round(1)] == oldest[:1]
    while len(life.queue) > 128:
        life.round(1)
    expected = life.expected(policy, 2)
    assert expected != [t.request_id for t in life.queue]
    assert [pick.ticket.request_id for pick in life.round(128)] == expected


def test_k_lpm_counts_its_cycle_across_rounds_and_per_replica() -> None:
    scheduler = make_scheduler("k-lpm", {"k": 3})
    for name, letters in [("1", "a"), ("2", "b"), ("3", "c"), ("4", "d"), ("5", "e"), ("6", "d")]:
        scheduler.add(ticket(name, letters))
    warm = ResidentPaths([t.skeleton.path((0,)) for t in [ticket("", "d")]])
    caches = {"r": warm, "s": warm}
    left = [play(scheduler, caches, [replica]) for replica in "rrsr"]
    assert [picks[0][1].ticket.request_id for picks in left] == ["1", "4", "2", "6"]
    assert [pick.ticket.request_id for _, pick in play(scheduler, caches, "rs")] == ["3", "5"]


def test_preble_shares_are_kept_over_rounds_of_one_dispatch() -> None:
    """While all ten groups wait, 550 dispatches are 100 of group 10, ..., 10 of group 1."""
    rng = Random(1)
    scheduler = make_scheduler("preble-groups")
    known = {}
    cached = ticket("", "a", private=0).skeleton.path((0,))
    cache = ResidentPaths([cached])

    def add(group: int) -> None:
        # 40 cached tokens of a prompt of 40 * 10 / group
        name = f"{len(known)}"
        known[name] = ticket(name, "a", private=400 // group - 40 + (400 % group > 0))
        scheduler.add(known[name])

    for group in range(1, 11):
        for _ in range(2):
            add(group)
    assert {twins.preble_group(t, cache) for t in known.values()} == set(range(1, 11))
    served: Counter[int] = Counter()
    while sum(served.values()) < 550:
        for _, pick in play(scheduler, {"r": cache}, ["r"] * rng.randint(1, 3)):
            group = twins.preble_group(pick.ticket, cache)
            served[group] += 1
            add(group)
    assert all(abs(served[g] - 10 * g) <= 3 for g in range(1, 11)), served


def test_preble_is_fcfs_inside_a_group_and_leaves_no_turn_unused() -> None:
    rng = Random(2)
    scheduler = make_scheduler("preble-groups")
    tickets = [random_ticket(rng, f"{n:03d}") for n in range(60)]
    cache = random_cache(rng, tickets)
    for each in tickets:
        scheduler.add(each)
    left = [pick.ticket for _, pick in play(scheduler, {"r": cache}, ["r"] * 60)]
    assert len(left) == 60
    for group in range(1, 11):
        ids = [t.request_id for t in left if twins.preble_group(t, cache) == group]
        assert ids == sorted(ids)
