"""Cost of placing requests: decisions per second on one core, and what the forest's memory does.

``decisions`` is choosing a home and booking it, nothing else (what Preble measured); ``lives`` adds
the reports of its end; with a policy's name it is the whole dispatcher. No engine; the stopwatch is
the CPU time of the thread.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path as FilePath

import click

from loadgen.bench.processes import rss_bytes
from loadgen.traces import make_trace
from prism_ray.cache_news import CacheNews, Span
from prism_ray.dispatch import Dispatcher
from prism_ray.dispatch.path_places import places_of
from prism_ray.dispatch.seat import Seat
from prism_ray.model import (
    NO_GAP,
    Completion,
    Outcome,
    ReplicaCapacity,
    Segment,
    SegmentKind,
    Skeleton,
    Ticket,
)
from prism_ray.placement import Homing, Path, make_placement
from prism_ray.policies import make_scheduler

CAPACITY = ReplicaCapacity(pool_tokens=350_000, max_running=256, prefill_ahead_tokens=16_384)
TELLING = replace(CAPACITY, tells_cache=True)
IN_FLIGHT = 16
"""Requests outstanding at a replica."""
RATE = 8.0
"""Requests per second and replica of the clock that the placement is shown."""
WARM_UP = 4_000
BLOCKS = 30
BLOCK_REQUESTS = 500
SAMPLES = 50


@dataclass(frozen=True)
class Row:
    trace: str
    placement: str
    replicas: int
    what: str
    tells_cache: bool
    requests_per_s: float
    forest_nodes: int


@dataclass(frozen=True)
class MemoryRow:
    requests: int
    rss_bytes: int
    forest_nodes: int
    uses: int


class Engine:
    """A seat's engine that tells what it has cached: whatever came, until newer things fill the pool."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._spans: OrderedDict[bytes, Span] = OrderedDict()
        self._tokens = 0
        self._sequence = 0
        self._tell()

    def compute(self, path: Path) -> None:
        spans = self._spans
        news = []
        start = 0
        for key, end in places_of(path):
            if key not in spans:
                spans[key] = Span(key, start, end)
                self._tokens += end - start
                news.append(spans[key])
            spans.move_to_end(key)
            start = end
        while self._tokens > CAPACITY.pool_tokens:
            key, gone = spans.popitem(last=False)
            self._tokens -= gone.end - gone.start
            news.append(Span(key, 0, 0))
        self._tell(*news)

    def _tell(self, *spans: Span) -> None:
        self._seat.cache_news(CacheNews(0, self._sequence, spans))
        self._sequence += 1


class Lives:
    """A placement through whole lives of requests: placed, sent, prefilled, released."""

    def __init__(self, name: str, replicas: int, *, tells_cache: bool = False) -> None:
        placement = make_placement(name)
        if not isinstance(placement, Homing):
            raise click.BadParameter(f"{name} places no requests")
        self.placement = placement
        self._outstanding: deque[tuple[str, str, Path]] = deque()
        self._engines: dict[str, Engine] = {}
        self._limit = IN_FLIGHT * replicas
        self._step_s = 1 / (RATE * replicas)
        self.now_s = 0.0
        for number in range(replicas):
            replica = f"replica-{number}"
            seat = Seat(replica, "first", TELLING) if tells_cache else None
            if seat is not None:
                self._engines[replica] = Engine(seat)
            placement.join(replica, CAPACITY, seat, 0.0)

    def play(self, tickets: list[Ticket]) -> float:
        """Returns the CPU seconds of all of it."""
        start = time.thread_time()
        for ticket in tickets:
            self._decide(ticket)
            self._end_one()
        return time.thread_time() - start

    def _decide(self, ticket: Ticket) -> None:
        self.now_s += self._step_s
        skeleton = ticket.skeleton
        path = skeleton.path(skeleton.native_order)
        choice = self.placement.place(ticket, path, self.now_s)
        self.placement.sent(ticket.request_id, path, 0, self.now_s)
        self._outstanding.append((ticket.request_id, choice.replica, path))

    def _end_one(self) -> None:
        if len(self._outstanding) > self._limit:
            gone, replica, path = self._outstanding.popleft()
            if replica in self._engines:
                self._engines[replica].compute(path)
            self.placement.prefilled(gone, self.now_s)
            self.placement.released(gone, 16, self.now_s)


class Decisions(Lives):
    """The same lives; only the decisions are timed, eight in a row."""

    def play(self, tickets: list[Ticket]) -> float:
        seconds = 0.0
        rest = iter(tickets)
        while batch := list(islice(rest, 8)):
            start = time.thread_time()
            for ticket in batch:
                self._decide(ticket)
            seconds += time.thread_time() - start
            for _ in batch:
                self._end_one()
        return seconds


class Rounds:
    """The dispatcher with a policy: submitted, decided in a round, completed."""

    def __init__(self, name: str, replicas: int, policy: str, *, tells_cache: bool = False) -> None:
        self.placement = make_placement(name)
        self._dispatcher = Dispatcher(make_scheduler(policy), self.placement, "bench", 0.0)
        self._step_s = 1 / (RATE * replicas)
        self.now_s = 0.0
        self._engines: dict[str, Engine] = {}
        for number in range(replicas):
            replica = f"replica-{number}"
            self._dispatcher.join(replica, "first", TELLING if tells_cache else CAPACITY, 0.0)
            if tells_cache:
                self._engines[replica] = Engine(self._dispatcher.seats[replica])
        self._waiting: dict[str, Skeleton] = {}
        self._sent: deque[tuple[str, str]] = deque()
        self._limit = IN_FLIGHT * replicas

    def play(self, tickets: list[Ticket]) -> float:
        """A round for every eight requests: what comes within some milliseconds of a busy window."""
        start = time.thread_time()
        rest = iter(tickets)
        while batch := list(islice(rest, 8)):
            self.now_s += len(batch) * self._step_s
            for ticket in batch:
                self._waiting[ticket.request_id] = ticket.skeleton
                self._dispatcher.submit(replace(ticket, arrival_s=self.now_s))
            for dispatch in self._dispatcher.round(self.now_s):
                for decision in dispatch.decisions:
                    replica, request_id = dispatch.plan.replica, decision.request_id
                    skeleton = self._waiting.pop(request_id)
                    if replica in self._engines:
                        self._engines[replica].compute(skeleton.path(decision.order))
                    self._dispatcher.prefill_ended(replica, request_id, 0, self.now_s)
                    self._sent.append((replica, request_id))
            while len(self._sent) > self._limit:
                replica, request_id = self._sent.popleft()
                done = Completion(request_id, 0, Outcome.FINISHED, output_tokens=16)
                self._dispatcher.completed(replica, done, self.now_s)
        return time.thread_time() - start


def measure(
    trace: str, placement: str, replicas: int, what: str, seed: int, *, tells_cache: bool = False
) -> Row:
    """The best of many blocks: other work on the machine slows blocks down and is no cost of ours."""
    # A trace's prompts over and over under new names: the forest is as full as the trace makes it.
    prompts = [request.skeleton for request in make_trace(trace, seed, 8_192).requests]
    tickets = (
        Ticket(f"{number:032x}", skeleton, 0.0, max_new_tokens=16)
        for number, skeleton in enumerate(cycle(prompts))
    )
    player: Lives | Rounds
    if what == "decisions":
        player = Decisions(placement, replicas, tells_cache=tells_cache)
    else:
        player = (
            Lives(placement, replicas, tells_cache=tells_cache)
            if what == "lives"
            else Rounds(placement, replicas, what, tells_cache=tells_cache)
        )
    player.play(list(islice(tickets, WARM_UP)))
    costs_s = []
    for _ in range(BLOCKS):
        block = list(islice(tickets, BLOCK_REQUESTS))
        gc.collect()
        costs_s.append(player.play(block) / BLOCK_REQUESTS)
    nodes, _ = _forest(player.placement)
    return Row(trace, placement, replicas, what, tells_cache, 1 / min(costs_s), nodes)


def churn() -> Iterator[Ticket]:
    """Requests of which four share a prefix that nobody had before."""
    number = 0
    while True:
        document = Segment(b"document %d" % (number // 4), 1_500, SegmentKind.DOCUMENT)
        question = Segment(b"question %d" % number, 100, SegmentKind.TEXT)
        skeleton = Skeleton(
            Segment(b"system", 200, SegmentKind.SYSTEM), (document, question), (NO_GAP,) * 2, 50
        )
        yield Ticket(f"{number:032x}", skeleton, 0.0, max_new_tokens=16)
        number += 1


def memory(placement: str, replicas: int, requests: int) -> list[MemoryRow]:
    """Resident memory of this process and the forest's size while new prefixes come for ever."""
    player = Lives(placement, replicas)
    tickets = churn()
    rows = []
    each = max(1, requests // SAMPLES)
    for done in range(each, requests + 1, each):
        for _ in range(0, each, BLOCK_REQUESTS):
            player.play(list(islice(tickets, min(each, BLOCK_REQUESTS))))
        gc.collect()
        rows.append(MemoryRow(done, rss_bytes(os.getpid()), *_forest(player.placement)))
    return rows


def _forest(placement: object) -> tuple[int, int]:
    forest = getattr(placement, "forest", None) or getattr(placement, "tree", None)
    return (0, 0) if forest is None else (forest.nodes, len(forest))


@click.command("placement")
@click.option(
    "--json", "json_path", type=click.Path(path_type=FilePath), help="Write the rows here."
)
@click.option("--placement", "placements", multiple=True, default=["e2"], show_default=True)
@click.option(
    "--trace", "traces", multiple=True, default=["toolbench", "videoqa"], show_default=True
)
@click.option(
    "--replicas",
    "counts",
    type=click.IntRange(1),
    multiple=True,
    default=[8, 64],
    show_default=True,
)
@click.option("--policy", default="qas", show_default=True, help="For the rows of whole rounds.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--tells-cache", is_flag=True, help="Replicas tell what they have cached.")
@click.option("--memory", "memory_requests", type=click.IntRange(1), help="Requests; instead.")
def placement(
    json_path: FilePath | None,
    placements: tuple[str, ...],
    traces: tuple[str, ...],
    counts: tuple[int, ...],
    policy: str,
    seed: int,
    tells_cache: bool,
    memory_requests: int | None,
) -> None:
    """Measure what placing costs on one core, alone and in whole rounds."""
    rows: list[Row | MemoryRow] = []
    if memory_requests is not None:
        memory_rows = memory(placements[0], counts[0], memory_requests)
        rows.extend(memory_rows)
        click.echo(f"{'requests':>10}{'RSS MiB':>9}{'nodes':>9}{'uses':>9}")
        for each in memory_rows:
            mib = each.rss_bytes / 2**20
            click.echo(f"{each.requests:>10,}{mib:>9.1f}{each.forest_nodes:>9,}{each.uses:>9,}")
    else:
        click.echo(f"{'placement':<16}{'trace':<14}{'replicas':>8}  {'what':<10}{'requests/s':>11}")
        for name in placements:
            for trace in traces:
                for replicas in counts:
                    for what in ("decisions", "lives", policy):
                        row = measure(trace, name, replicas, what, seed, tells_cache=tells_cache)
                        rows.append(row)
                        click.echo(
                            f"{name:<16}{trace:<14}{replicas:>8}  {what:<10}"
                            f"{row.requests_per_s:>11,.0f}"
                        )
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    placement()
