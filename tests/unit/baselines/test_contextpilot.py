"""ContextPilot's reorder and schedule: as the package does it, and as a policy.

``contextpilot_0_5_0.json`` holds inputs and what the package of that version (Apache-2.0) returned.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np

from prism_ray.baselines.context_index import ContextIndex
from prism_ray.baselines.context_tree import distance, distances
from prism_ray.baselines.linkage import average_linkage
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Serializing

from . import twins
from .scenes import ResidentPaths, play, ticket

RECORDED = Path(__file__).parent / "contextpilot_0_5_0.json"


def test_batches_are_reordered_and_scheduled_as_the_package_does_it() -> None:
    cases = json.loads(RECORDED.read_text())["cases"]
    assert len(cases) == 150
    for case in cases:
        index = ContextIndex()
        for batch, expected in zip(case["batches"], case["scheduled"], strict=True):
            scheduled = index.add([tuple(context) for context in batch])
            assert [[place, list(docs)] for place, docs in scheduled] == expected


def test_a_batch_without_ties_is_ordered_and_grouped_as_the_twin_says() -> None:
    rng = Random(3)
    compared = shared = 0
    while compared < 40:
        contexts = [
            tuple(rng.sample(range(14), rng.randint(2, 6))) for _ in range(rng.randint(2, 7))
        ]
        numbers = {doc: n for n, doc in enumerate(dict.fromkeys(d for c in contexts for d in c))}
        contexts = [tuple(numbers[doc] for doc in context) for context in contexts]
        groups = twins.contextpilot(contexts)
        if groups is None:
            continue
        compared += 1
        shared += len(groups[0]) > 1
        scheduled = ContextIndex().add(contexts)
        for group in groups:
            now, scheduled = scheduled[: len(group)], scheduled[len(group) :]
            placed = {each.place: each for each in group}
            assert {row.place: row.docs for row in now} == {p: e.docs for p, e in placed.items()}
            depths = [placed[row.place].depth for row in now]
            assert depths == sorted(depths, reverse=True)
    assert shared > 20


def test_all_distances_at_once_are_the_distances_of_pairs() -> None:
    rng = Random(0)
    contexts = [tuple(rng.sample(range(9), rng.randint(1, 6))) for _ in range(30)]
    pairs = np.array([[distance(a, b) for b in contexts] for a in contexts])
    off_diagonal = ~np.eye(30, dtype=bool)
    assert np.allclose(distances(contexts)[off_diagonal], pairs[off_diagonal], atol=1e-6)


def test_linkage_merges_the_two_nearest_clusters_by_mean_distance() -> None:
    rng = np.random.default_rng(1)
    points = rng.random((25, 2))
    apart = np.linalg.norm(points[:, None] - points[None, :], axis=2)
    clusters = {n: [n] for n in range(25)}
    for made, pair in enumerate(average_linkage(apart), 25):
        means = {
            (a, b): apart[np.ix_(clusters[a], clusters[b])].mean()
            for a in clusters
            for b in clusters
            if a < b
        }
        assert pair == min(means, key=means.__getitem__)
        clusters[made] = clusters.pop(pair[0]) + clusters.pop(pair[1])


def test_the_index_forgets_the_oldest_contexts() -> None:
    index = ContextIndex(contexts_max=10)
    for start in range(100):
        index.add([(start, start + 1, start + 2)])
        assert len(index) <= 10
    assert index.add([(2, 0, 1)])[0].docs == (2, 0, 1), "nothing of the first contexts is left"
    assert index.add([(97, 98, 200)])[0].docs == (97, 98, 200)
    assert index.add([(201, 99, 98)])[0].docs == (98, 99, 201)


def test_a_batch_is_what_waits_when_the_last_one_has_left() -> None:
    scheduler = make_scheduler("contextpilot")
    scheduler.add(ticket("1", "abc"))
    caches = {"r": ResidentPaths()}
    assert [p.ticket.request_id for _, p in play(scheduler, caches, "r")] == ["1"]
    for name, letters in [("2", "xy"), ("3", "cbz"), ("4", "yx")]:
        scheduler.add(ticket(name, letters))
    left = play(scheduler, caches, "r")
    scheduler.add(ticket("5", "ba"))
    assert isinstance(scheduler, Serializing)
    assert scheduler.order_of("5") == (0, 1), "not in a batch yet"
    left += play(scheduler, caches, "rrr")
    assert [p.ticket.request_id for _, p in left] == ["3", "2", "4", "5"]
    written = {
        p.ticket.request_id: b"".join(p.ticket.skeleton.segments[n].id for n in p.order)
        for _, p in left
    }
    assert written == {"3": b"bcz", "2": b"xy", "4": b"xy", "5": b"ab"}


def test_only_the_longest_run_is_reordered_and_repeats_stay_behind() -> None:
    from prism_ray.model import NO_GAP, Segment, Skeleton, Ticket

    def mixed(name: str, *pieces: tuple[str, int | None]) -> Ticket:
        segments = tuple(Segment(s.encode(), 10, run=run) for s, run in pieces)
        return Ticket(name, Skeleton(None, segments, (NO_GAP,) * len(segments), 5), 0.0)

    scheduler = make_scheduler("contextpilot")
    caches = {"r": ResidentPaths()}
    scheduler.add(mixed("1", ("b", 1), ("a", 1)))
    play(scheduler, caches, "r")
    pieces = [("h", None), ("a", 1), ("c", 1), ("a", 1), ("x", None), ("q", 2), ("b", 1)]
    scheduler.add(mixed("2", *pieces))
    ((_, pick),) = play(scheduler, caches, "r")
    written = "".join(pieces[index][0] for index in pick.order)
    assert written == "hbacxqa"
    pick.ticket.skeleton.check_order(pick.order)
