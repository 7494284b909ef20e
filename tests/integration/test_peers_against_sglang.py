"""lpm, dfs-weight and hrrn sort queues as the installed SGLang's own SchedulePolicy does.

SGLang's radix cache is built in this process on the CPU; an atom is a run of token ids of its own,
so that prompts part at atoms' ends, where our caches see them part.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from prism_ray.model import Atom, Segment, Skeleton, Ticket
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Match

pytest.importorskip("sglang")

QUEUES = 1_000
Path = tuple[Atom, ...]


class TrieCache:
    """The prefixes that were put into SGLang's cache, as a CacheView."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known = {path[:end] for path in paths for end in range(1, len(path) + 1)}

    def match(self, path: Path) -> Match:
        tokens = 0
        for end, atom in enumerate(path, 1):
            if path[:end] not in self._known:
                break
            tokens += atom.tokens
        return Match(tokens, tokens)


def token_ids(path: Path) -> list[int]:
    return [atom.id[0] * 1_000 + n for atom in path for n in range(atom.tokens)]


def random_queue(rng: Random) -> tuple[list[Ticket], list[Path]]:
    """A queue of up to 160 requests, and the prefixes to cache, those of the oldest request first.

    (Between subtrees of equal weight SGLang goes by which was cached first, dfs-weight by age.)
    """
    lengths = [rng.choice([1, 5, 12, 20, 40]) for _ in range(8)]
    size = rng.choice([3, 10, 30, 60, 128, 129, 160])
    queue = []
    for n in range(size):
        numbers = rng.sample(range(8), rng.randint(0, 5))
        segments = tuple(Segment(bytes([1 + k]), lengths[k]) for k in numbers)
        gaps = tuple(Atom(b"", 0) for _ in segments)
        skeleton = Skeleton(None, segments, gaps, rng.choice([0, 1, 7, 30]))
        queue.append(Ticket(f"{(n * 7919) % 997:03d}", skeleton, 0.0))
    paths = [t.skeleton.path(t.skeleton.native_order) for t in queue]
    share = rng.choice([0.0, 0.1, 0.5, 1.0])
    cached = [path[: rng.randint(0, len(path))] for path in paths if rng.random() < share]
    known = {path[:end] for path in cached for end in range(1, len(path) + 1)}
    matched = [longest_known(path, known) for path in paths]
    return queue, [path for path in matched if path]


def longest_known(path: Path, known: set[Path]) -> Path:
    """The longest front of a path that is known."""
    return next((path[:end] for end in range(len(path), 0, -1) if path[:end] in known), ())


@pytest.fixture(scope="module")
def sglang() -> Any:
    import torch
    from sglang.srt.environ import envs
    from sglang.srt.managers.schedule_policy import SchedulePolicy
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    def order(
        name: str, queue: list[Ticket], cached: list[Path], processed: int, ages: dict[str, int]
    ) -> list[str]:
        tree = RadixCache.create_simulated()
        for path in cached:
            ids = token_ids(path)
            key = RadixKey(token_ids=ids, extra_key=None)
            tree.insert(InsertParams(key=key, value=torch.arange(len(ids))))
        requests = []
        for number, ticket in enumerate(queue):
            prefix = token_ids(ticket.skeleton.path(ticket.skeleton.native_order))
            private = [1_000_000 + 100 * number + n for n in range(ticket.skeleton.private_tokens)]
            ids = prefix + private
            requests.append(
                SimpleNamespace(
                    rid=ticket.request_id,
                    origin_input_ids=ids,
                    output_ids=[],
                    extra_key=None,
                    cache_salt=None,
                    priority=None,
                    kv=SimpleNamespace(cache_protected_len=0),
                    arrival_processed_tokens=ages[ticket.request_id],
                    _compute_max_prefix_len=lambda length: max(0, length - 1),
                )
            )
        policy = SchedulePolicy(name, tree, False, False, False)
        policy.calc_priority(requests, processed_tokens=processed)
        return [request.rid for request in requests]

    # Refreshing waiting prefixes needs a configured server, and concerns no order.
    with envs.SGLANG_ENABLE_WAITING_PREFIX_REFRESH.override(False):
        yield order


def ours(name: str, queue: list[Ticket], cached: list[Path], ages: dict[str, int]) -> list[str]:
    """Our order of the queue, whose requests arrived when so many tokens had been processed."""
    scheduler = make_scheduler(name)
    for ticket in queue:
        if name == "hrrn":
            scheduler._processed = ages[ticket.request_id]  # type: ignore[attr-defined]
        scheduler.add(ticket)
    if name == "hrrn":
        scheduler._processed = max(ages.values())  # type: ignore[attr-defined]
    opened = scheduler.open_round({"r": TrieCache(cached)})
    order = []
    while pick := opened.peek("r"):
        opened.take("r", pick)
        order.append(pick.ticket.request_id)
    opened.close()
    return order


@pytest.mark.parametrize("name", ["lpm", "dfs-weight", "hrrn"])
def test_a_thousand_random_queues_are_sorted_as_sglang_sorts_them(name: str, sglang: Any) -> None:
    rng = Random(5)
    changed = 0
    for _ in range(QUEUES):
        queue, cached = random_queue(rng)
        ages = {t.request_id: rng.randint(0, 5_000) for t in queue}
        expected = sglang(name, queue, cached, max(ages.values()), ages)
        assert ours(name, queue, cached, ages) == expected
        changed += expected != [t.request_id for t in queue]
    assert changed > QUEUES // 3, "the queues must make a difference"
