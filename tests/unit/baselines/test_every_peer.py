"""What holds for every policy that ranks a queue, whatever it prefers."""

from __future__ import annotations

from random import Random

import pytest

from prism_ray.model import Ticket
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import REFRESH_PASSES, Refreshing, Scheduler

from .scenes import ResidentPaths, drain, play, random_cache, random_ticket, ticket

PEERS = (
    "fcfs",
    "fcfs-refresh",
    "lpm",
    "lpm-uncapped",
    "dfs-weight",
    "hrrn",
    "k-lpm",
    "preble-groups",
    "contextpilot",
    "peek",
    "front-alignment",
    "prism",
)
REPLICAS = ("r0", "r1")


def live(policy: str, seed: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """A random life over two replicas; who was dispatched where, and in which order it was written.

    Asserted on the way: an allowed order, work conservation, and that everybody leaves once.
    """
    rng = Random(seed)
    scheduler = make_scheduler(policy)
    waiting: dict[str, Ticket] = {}
    active: list[str] = []
    log = []
    for step in range(60):
        for n in range(rng.randint(0, 4)):
            new = random_ticket(rng, f"{step}-{n}")
            scheduler.add(new)
            waiting[new.request_id] = new
        if waiting and rng.random() < 0.2:
            gone = rng.choice(list(waiting))
            assert scheduler.cancel(gone)
            del waiting[gone]
        while active and rng.random() < 0.6:
            assert scheduler.finish(active.pop(0))
        asks = [rng.choice(REPLICAS) for _ in range(rng.randint(0, 5))]
        caches = {r: random_cache(rng, waiting.values()) for r in REPLICAS}
        taken = play(scheduler, caches, asks)
        assert len(taken) == min(len(asks), len(waiting)), "a replica asked while somebody waited"
        for replica, pick in taken:
            assert waiting.pop(pick.ticket.request_id) is pick.ticket
            pick.ticket.skeleton.check_order(pick.order)
            active.append(pick.ticket.request_id)
            log.append((replica, pick.ticket.request_id, pick.order))
        assert {t.request_id for t in scheduler.waiting()} == set(waiting)
        assert len(scheduler) == len(waiting)
        scheduler.check_integrity()
    assert sorted(drain(scheduler)) == sorted(waiting)
    return log


@pytest.mark.parametrize("policy", PEERS)
def test_nobody_is_lost_and_the_same_seed_lives_the_same_life(policy: str) -> None:
    assert live(policy, 3) == live(policy, 3)


@pytest.mark.parametrize("policy", [*PEERS, "qas"])
def test_without_sharing_the_oldest_goes_first(policy: str) -> None:
    """Requests of equal length with segments of their own: first come first served, in every lane."""
    scheduler = make_scheduler(policy)
    names = [f"{n:03d}" for n in range(60)]
    for n, name in enumerate(names):
        scheduler.add(ticket(name, chr(0x100 + 2 * n) + chr(0x101 + 2 * n)))
    left: list[str] = []
    while len(scheduler):
        taken = play(scheduler, {"r": ResidentPaths()}, "rrr")
        left += [pick.ticket.request_id for _, pick in taken]
        assert all(pick.order == (0, 1) for _, pick in taken)
    assert left == names


@pytest.mark.parametrize("policy", PEERS)
def test_a_request_put_back_at_the_head_goes_before_its_equals(policy: str) -> None:
    scheduler = make_scheduler(policy)
    for name in ("2", "3"):
        scheduler.add(ticket(name, "ab"))
    scheduler.add(ticket("1", "ab"), at_head=True)
    assert drain(scheduler) == ["1", "2", "3"]


@pytest.mark.parametrize("policy", PEERS)
def test_what_is_wrong_is_refused(policy: str) -> None:
    with pytest.raises(ValueError, match="'colour'"):
        make_scheduler(policy, {"colour": "red"})
    scheduler = make_scheduler(policy)
    scheduler.add(ticket("1", "ab"))
    with pytest.raises(ValueError, match="'1'"):
        scheduler.add(ticket("1", "ab"))
    opened = scheduler.open_round({"r": ResidentPaths(), "s": ResidentPaths()})
    with pytest.raises(RuntimeError, match="round is open"):
        scheduler.add(ticket("2", "ab"))
    with pytest.raises(ValueError, match="'t'"):
        opened.peek("t")
    first, second = opened.peek("r"), opened.peek("s")
    assert first is not None
    assert second is not None
    opened.take("r", first)
    with pytest.raises(ValueError, match="1 is not"):
        opened.take("s", second)
    opened.close()
    with pytest.raises(RuntimeError, match="closed"):
        opened.peek("r")
    with pytest.raises(ValueError, match="'1'"):
        scheduler.add(ticket("1", "ab"))
    assert scheduler.finish("1")
    assert not scheduler.finish("1")
    assert not scheduler.cancel("1")
    assert scheduler.describe()["policy"] == policy


@pytest.mark.parametrize("policy", PEERS)
def test_with_homes_a_replica_is_offered_its_own_requests_only(policy: str) -> None:
    scheduler = make_scheduler(policy)
    for name in "12345":
        scheduler.add(ticket(name, "ab"))
    caches = {"r": ResidentPaths(), "s": ResidentPaths()}
    homes = {"1": "s", "2": "r", "3": "s", "4": "elsewhere"}
    opened = scheduler.open_round(caches, homes)
    left: dict[str, list[str]] = {"r": [], "s": []}
    for replica in "rsrsrs":
        pick = opened.peek(replica)
        if pick is not None:
            opened.take(replica, pick)
            left[replica].append(pick.ticket.request_id)
    opened.close()
    assert left == {"r": ["2"], "s": ["1", "3"]}
    assert [t.request_id for t in scheduler.waiting()] == ["4", "5"]


@pytest.mark.parametrize(
    ("policy", "name", "value"),
    [
        ("k-lpm", "k", 0),
        ("k-lpm", "k", True),
        ("lpm", "matched_max", -1),
        ("lpm", "in_batch", 1),
        ("hrrn", "matched_max", 1.5),
        ("preble-groups", "groups", 0),
        ("contextpilot", "batch_max", 0),
        ("peek", "fairness", -1),
        ("front-alignment", "q_cold", 2),
        ("prism", "order", "best"),
        ("prism", "overdue_share", 1.5),
        ("prism", "window_max", 0),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(policy: str, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        make_scheduler(policy, {name: value})


def test_sglangs_fcfs_names_the_paths_to_renew_and_plain_fcfs_none() -> None:
    plain: Scheduler = make_scheduler("fcfs")
    assert not isinstance(plain, Refreshing)
    scheduler = make_scheduler("fcfs-refresh")
    assert isinstance(scheduler, Refreshing)
    tickets = [ticket(f"{n:03d}", "ab" if n else "ba") for n in range(130)]
    for each in tickets:
        scheduler.add(each)
    paths = list(scheduler.refresh_paths())
    assert len(paths) == 128
    assert paths[-1] == tickets[0].skeleton.path((0, 1)), "the oldest is renewed last"
    assert REFRESH_PASSES == 32


def test_front_alignment_writes_shared_segments_first_and_sends_the_oldest() -> None:
    scheduler = make_scheduler("front-alignment", {"f_front": 1})
    scheduler.add(ticket("1", "ax"))
    for n in range(2, 6):
        scheduler.add(ticket(f"{n}", f"{n}x"))
    opened = scheduler.open_round({"r": ResidentPaths()})
    picks = []
    while pick := opened.peek("r"):
        opened.take("r", pick)
        picks.append(pick)
    tables = opened.close()
    assert [pick.ticket.request_id for pick in picks] == ["1", "2", "3", "4", "5"]
    assert all(pick.order == (1, 0) for pick in picks)
    assert tables["r"].rows == ()
