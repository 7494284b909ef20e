"""Cost of a scheduling policy alone: requests scheduled per second on one core at a given depth.

No dispatcher, no engine; the stopwatch is the CPU time of the thread.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click

from loadgen.traces.zipf_hotspot import ZipfHotspot
from prism_ray.model import Atom, Ticket
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Match, Scheduler

IN_FLIGHT = 64
"""Requests that stay active, so that counters of active segments are as full as in service."""
RESIDENT = 700
"""Requests whose paths a pool of 400,000 tokens holds, at a hit rate of 45%."""
BLOCKS = 40
BLOCK_S = 0.05


class ColdCache:
    """A replica about whose cache nothing is known."""

    def match(self, path: tuple[Atom, ...]) -> Match:
        return Match(0, 0)


class WarmCache:
    """A replica that holds the paths of the last requests that it was sent, as many as its pool takes."""

    def __init__(self, requests: int = RESIDENT) -> None:
        self._requests = requests
        self._paths: deque[tuple[Atom, ...]] = deque()
        self._holders: Counter[tuple[Atom, ...]] = Counter()

    def match(self, path: tuple[Atom, ...]) -> Match:
        for end in range(len(path), 0, -1):
            if path[:end] in self._holders:
                tokens = sum(atom.tokens for atom in path[:end])
                return Match(tokens, tokens)
        return Match(0, 0)

    def sent(self, path: tuple[Atom, ...]) -> None:
        self._paths.append(path)
        for end in range(1, len(path) + 1):
            self._holders[path[:end]] += 1
        if len(self._paths) > self._requests:
            gone = self._paths.popleft()
            for end in range(1, len(gone) + 1):
                self._holders[gone[:end]] -= 1
                if not self._holders[gone[:end]]:
                    del self._holders[gone[:end]]


Cache = ColdCache | WarmCache


class Row(NamedTuple):
    policy: str
    queued: int
    per_round: int
    cache: str
    requests_per_s: float


def measure(policy: str, queued: int, per_round: int, seed: int, *, warm: bool = False) -> Row:
    """Rounds of ``per_round`` arrivals, dispatches and finishes each at ``queued`` waiting requests.

    Time is this thread's CPU time, and the figure that of the best of many blocks of rounds: other
    work on the machine slows blocks down (caches, clock) and is not the policy's cost. A block has
    many rounds, so what a policy puts off from round to round counts.
    """
    scheduler = make_scheduler(policy)
    cache = WarmCache() if warm else ColdCache()
    tickets = ZipfHotspot(seed).tickets()
    active: deque[str] = deque()
    for ticket in islice(tickets, queued + IN_FLIGHT):
        scheduler.add(ticket)
    _dispatch(scheduler, IN_FLIGHT, active, cache)
    for _ in range(20):
        _round(scheduler, list(islice(tickets, per_round)), active, cache)
    rounds = _rounds_per_block(scheduler, tickets, per_round, active, cache)
    costs_s = []
    for _ in range(BLOCKS):
        arrivals = [list(islice(tickets, per_round)) for _ in range(rounds)]
        start = time.thread_time()
        for batch in arrivals:
            _round(scheduler, batch, active, cache)
        costs_s.append((time.thread_time() - start) / (rounds * per_round))
    if len(scheduler) != queued:
        raise RuntimeError(f"{len(scheduler)} requests are queued, not {queued}")
    return Row(policy, queued, per_round, "warm" if warm else "cold", 1 / min(costs_s))


def _rounds_per_block(
    scheduler: Scheduler,
    tickets: Iterator[Ticket],
    per_round: int,
    active: deque[str],
    cache: Cache,
) -> int:
    batches = [list(islice(tickets, per_round)) for _ in range(20)]
    start = time.thread_time()
    for batch in batches:
        _round(scheduler, batch, active, cache)
    return max(1, int(BLOCK_S / ((time.thread_time() - start) / 20)))


def _round(scheduler: Scheduler, arrivals: list[Ticket], active: deque[str], cache: Cache) -> None:
    for ticket in arrivals:
        scheduler.add(ticket)
    for _ in arrivals:
        scheduler.finish(active.popleft())
    _dispatch(scheduler, len(arrivals), active, cache)


def _dispatch(scheduler: Scheduler, count: int, active: deque[str], cache: Cache) -> None:
    round_ = scheduler.open_round({"replica": cache})
    sent = []
    for _ in range(count):
        pick = round_.peek("replica")
        if pick is None:
            break
        round_.take("replica", pick)
        active.append(pick.ticket.request_id)
        sent.append(pick)
    round_.close()
    if isinstance(cache, WarmCache):
        for pick in sent:
            cache.sent(pick.ticket.skeleton.path(pick.order))


@click.command("scheduler")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--policy", "policies", multiple=True, default=["qas"], show_default=True)
@click.option(
    "--warm", is_flag=True, help="Over a cache that holds what was sent, not an unknown one."
)
@click.option("--per-round", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--queued",
    "depths",
    type=click.IntRange(1),
    multiple=True,
    default=[100, 1_000, 10_000, 100_000],
    show_default=True,
)
@click.option("--seed", type=int, default=0, show_default=True)
def scheduler(
    json_path: Path | None,
    policies: tuple[str, ...],
    warm: bool,
    per_round: int,
    depths: tuple[int, ...],
    seed: int,
) -> None:
    """Measure what scheduling costs on one core, on the paper's trace."""
    rows = []
    click.echo(f"{'policy':<16}{'queued':>10}{'per round':>11}{'requests/s':>13}{'us/round':>11}")
    for policy in policies:
        for queued in depths:
            row = measure(policy, queued, per_round, seed, warm=warm)
            rows.append(row)
            round_us = 1e6 * per_round / row.requests_per_s
            click.echo(
                f"{policy:<16}{queued:>10,}{per_round:>11}{row.requests_per_s:>13,.0f}{round_us:>11.1f}"
            )
    if json_path is not None:
        json_path.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    scheduler()
