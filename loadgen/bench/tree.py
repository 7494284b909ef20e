"""What DART's tree costs: match, insert and evict against SGLang's own LRU, on both its tree cores.

No engine and no model: SGLang's caches on CPU tensors, one process, this thread's CPU time. Arms take
turns inside one run, so that a busy machine slows all of them.
"""

from __future__ import annotations

import gc
import json
import random
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click

from loadgen.bench.tree_arms import ARMS, CacheDriver, CacheRequest, build_cache, prepare_process
from prism_ray.dart.anchors import AnchorMark
from prism_ray.dart.hints import dump_demand
from prism_ray.dart.node import NodeKind
from prism_ray.model import Demand, DemandTable

EDGE_TOKENS = 16
"""Tokens of a leaf in the trees of a given size: short edges, or a million nodes would not fit."""
FAN_OUT = 32
EVICT_TOKENS = 8 * EDGE_TOKENS
"""An eviction makes room for eight leaves, about what one prefill step of small prompts needs."""
BLOCKS = 5


class Row(NamedTuple):
    """One figure: CPU microseconds of one call (median of blocks), or bytes where the name says so."""

    measure: str
    arm: str
    size: int
    value: float


class Tree:
    """A cache of about ``nodes`` nodes in two levels, and fresh prompts that belong below them."""

    def __init__(self, arm: str, nodes: int, seed: int, spare: int = 4096) -> None:
        import torch

        self.random = random.Random(seed)
        self.arm = arm
        self.fronts = max(1, nodes // (FAN_OUT + 1))
        pool_tokens = (nodes + self.fronts + spare) * EDGE_TOKENS
        self.cache = build_cache(arm, pool_tokens, context=256)
        self._slots = self.cache.token_to_kv_pool_allocator
        self._leaves = 0
        self._known: set[int] = set()
        self._front = torch.zeros(EDGE_TOKENS, dtype=torch.int64)
        for front in range(self.fronts):
            for _ in range(FAN_OUT):
                self.insert(self.path(front))

    def path(self, front: int) -> array[int]:
        self._leaves += 1
        first = 1_000_000 + self._leaves * EDGE_TOKENS
        head = range(front * EDGE_TOKENS, (front + 1) * EDGE_TOKENS)
        return array("q", [*head, *range(first, first + EDGE_TOKENS)])

    def insert(self, path: array[int]) -> None:
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        # Like a request that matched its front: only the rest is computed, and given.
        known = EDGE_TOKENS if path[0] in self._known else 0
        self._known.add(path[0])
        slots = self._slots.alloc(len(path) - known)
        assert slots is not None
        value = torch.cat([self._front[:known], slots])
        if self.arm == "dart":
            self.cache.tree_core.anchors = self.anchors
        self.cache.insert(InsertParams(key=RadixKey(path), value=value, prev_prefix_len=known))

    @property
    def anchors(self) -> Any:
        from prism_ray.dart.node import Anchor, Owner

        name = self._leaves.to_bytes(16, "big")
        return (
            Anchor(EDGE_TOKENS, Owner(NodeKind.SYSTEM, b"front")),
            Anchor(2 * EDGE_TOKENS, Owner(NodeKind.REUSABLE, name, name)),
        )

    def match(self, path: array[int]) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        self.cache.match_prefix(MatchPrefixParams(key=RadixKey(path)))

    def evict(self) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.cache.evict(EvictParams(num_tokens=EVICT_TOKENS))


def tree_rows(nodes: int, seed: int, arms: tuple[str, ...]) -> Iterator[Row]:
    """Match, insert and evict at a given number of nodes, arms in turns."""
    gc.disable()
    trees = {arm: Tree(arm, nodes, seed) for arm in arms}
    gc.freeze()  # what is alive now is not looked through again before every block
    costs_us: dict[tuple[str, str], list[float]] = {}
    for _ in range(BLOCKS):
        for arm, one in trees.items():
            fronts = [one.random.randrange(one.fronts) for _ in range(64)]
            fresh = [one.path(front) for front in fronts]
            blocks: dict[str, Callable[[], None]] = {
                "insert": partial(_each, one.insert, fresh),
                "match": partial(_each, one.match, fresh),
                "evict": partial(_times, 8, one.evict),
            }
            calls = {"insert": 64, "match": 64, "evict": 8}
            for name, block in blocks.items():
                costs_us.setdefault((name, arm), []).append(_cpu_us(block) / calls[name])
    gc.unfreeze()
    for (name, arm), values in costs_us.items():
        yield Row(f"{name}_us", arm, nodes, median(values))


def _times(count: int, call: Callable[[], None]) -> None:
    for _ in range(count):
        call()


def _each(call: Callable[[Any], None], values: list[Any]) -> None:
    for value in values:
        call(value)


def _cpu_us(block: Callable[[], None]) -> float:
    gc.collect()
    gc.disable()  # in the timed part only
    try:
        start_ns = time.thread_time_ns()
        block()
        return (time.thread_time_ns() - start_ns) / 1000
    finally:
        gc.enable()


def request_rows(tokens: int, anchors: int, arms: tuple[str, ...]) -> Iterator[Row]:
    """CPU of a whole request in the cache: match, prefill end and finish, all fresh but the front.

    Half of the requests repeat the half before, so both new and known spans are walked.
    """
    costs_us: dict[str, list[float]] = {arm: [] for arm in arms}
    drivers = {arm: CacheDriver(build_cache(arm, tokens * 6, context=tokens + 64)) for arm in arms}
    for turn in range(BLOCKS + 1):
        for arm, driver in drivers.items():
            requests = [_long_request(f"{turn}-{i}", turn, tokens, anchors) for i in range(2)]
            cost = _cpu_us(partial(_each, _served(driver), requests))
            if turn:  # the first warms up
                costs_us[arm].append(cost / len(requests))
    for arm, values in costs_us.items():
        yield Row(f"request_us_{anchors}_anchors", arm, tokens, median(values))


def _served(driver: CacheDriver) -> Callable[[CacheRequest], None]:
    def serve(request: CacheRequest) -> None:
        if driver.serve(request, answer=range(32)) < 0:
            raise RuntimeError("the pool of the benchmark is too small")

    return serve


def _long_request(name: str, turn: int, tokens: int, anchors: int) -> CacheRequest:
    first = (turn + 1) * 1_000_000
    step = tokens // anchors
    marks = [
        AnchorMark((i + 1) * step, NodeKind.REUSABLE, *_names(turn, i)) for i in range(anchors)
    ]
    rows = tuple(Demand(marks[i].segment or b"", 1e6 - i, i) for i in range(anchors))
    table = dump_demand(DemandTable(turn + 1, rows))
    return CacheRequest(name, range(first, first + tokens), marks, table)


def _names(turn: int, index: int) -> tuple[bytes, bytes]:
    return b"s%015d" % (turn * 1000 + index), b"p%015d" % (turn * 1000 + index)


def memory_rows(anchors: int, cycles: int, seed: int) -> Iterator[Row]:
    """Bytes of Python memory that an anchor costs, and growth over insert/evict cycles in a full pool."""
    grown = Tree("dart", FAN_OUT + 1, seed, spare=anchors + 64)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    made = [grown.path(0) for _ in range(anchors)]
    for path in made:
        grown.insert(path)
    del made
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    yield Row("bytes_per_anchored_node", "dart", anchors, (after - before) / anchors)
    for half in ("first", "second"):
        for _ in range(cycles // 2):
            grown.insert(grown.path(0))
            grown.cache.evict(_evict_params(EDGE_TOKENS))
        gc.collect()
        now, _ = tracemalloc.get_traced_memory()
        yield Row(f"growth_bytes_{half}_half", "dart", cycles // 2, now - after)
        after = now
    tracemalloc.stop()


def _evict_params(tokens: int) -> Any:
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    return EvictParams(num_tokens=tokens)


def table(rows: list[Row], *, header: bool = True) -> str:
    """Rows as text, with each arm's ratio to SGLang's Python core."""
    reference = {(r.measure, r.size): r.value for r in rows if r.arm == "python-lru"}
    head = f"{'measure':<28} {'size':>9} {'arm':<12} {'value':>12} {'ratio':>7}"
    lines = [head] if header else []
    for row in rows:
        base = reference.get((row.measure, row.size))
        ratio = f"{row.value / base:7.2f}" if base else " " * 7
        lines.append(f"{row.measure:<28} {row.size:>9} {row.arm:<12} {row.value:>12.1f} {ratio}")
    return "\n".join(lines)


@click.command()
@click.option("--nodes", type=int, multiple=True, default=(1_000, 5_000, 10_000, 100_000))
@click.option("--full", is_flag=True, help="Also a million nodes: minutes, and 10 GB of memory.")
@click.option("--arm", "arms", multiple=True, type=click.Choice(ARMS), default=ARMS)
@click.option(
    "--cycles", type=int, default=100_000, help="Insert/evict cycles of the growth check."
)
@click.option("--seed", type=int, default=0)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def tree(
    nodes: tuple[int, ...],
    full: bool,
    arms: tuple[str, ...],
    cycles: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """DART's tree against SGLang's LRU on its Python and Rust tree cores, by number of nodes.

    Needs the sglang extra, no GPU. The default ends after 100,000 nodes, in a few minutes.
    """
    prepare_process()
    rows: list[Row] = []
    sizes = (*nodes, 1_000_000) if full else nodes
    requests = ((10_240, 64), (20_480, 64), (40_960, 64), (40_960, 8))
    parts = [
        *(tree_rows(size, seed, arms) for size in sizes),
        *(request_rows(tokens, anchors, arms) for tokens, anchors in requests),
        memory_rows(10_000, cycles, seed),
    ]
    for part in parts:
        done = list(part)
        rows += done
        click.echo(table(done, header=len(rows) == len(done)))
    if json_path is not None:
        json_path.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    tree()
