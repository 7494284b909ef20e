"""`prism-loadgen bench server`: this application beside SGLang's own server and its router.

Same model, same engine arguments, same bytes asked, on a real engine: what the scheduler, Serve and the
router add to a request's latency at low load, and what CPU each takes beside the engine's scheduler
process. The arms take turns in short blocks; differences are paired by block.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click

from loadgen.bench.processes import cpu_s, families
from loadgen.bench.servers import (
    Server,
    prism_server,
    router_is_installed,
    sglang_router,
    sglang_server,
)
from loadgen.checkout import git_commit
from loadgen.client import ClosedLoop, open_client
from loadgen.intervals import mean_interval
from loadgen.rows import Outcome, PlannedRequest, RequestRow

CHAT = "chat/completions"
ARMS = ("sglang", "sglang+router", "prism")
BASE = "sglang"
BLOCKS = 20
BLOCK_REQUESTS = 15
IDLE_S = 6.0
ENGINE_PROCESS = "sglang::scheduler"
"""What the process that runs the model calls itself; all arms have one, and its work is not the path."""

_WORDS = "the long river of the city has many bridges and each of them a name and a story"


@dataclass(frozen=True)
class Block:
    """One arm's turn: median times, and CPU per request of the model's process and of all others."""

    ttft_ms: float
    latency_ms: float
    path_cpu_ms: float
    engine_cpu_ms: float


@dataclass(frozen=True)
class Row:
    """An arm at one form of answer. ``added_*`` against BASE: (mean of the blocks' differences, 95%)."""

    arm: str
    streaming: bool
    requests: int
    ttft_ms: float
    latency_ms: float
    path_cpu_ms: float
    engine_cpu_ms: float
    idle_cpu_ms_per_s: float
    added_ttft_ms: tuple[float, float] | None
    added_latency_ms: tuple[float, float] | None


def body(number: int, streaming: bool, asker: str) -> dict[str, Any]:
    """A system text, four passages of twenty, and a question of its own; 16 tokens out."""
    passages = "\n".join(f"Passage {(number + i) % 20}. {_WORDS} {_WORDS}" for i in range(4))
    messages = [
        {"role": "system", "content": "Answer from the passages."},
        {"role": "user", "content": f"{passages}\nQuestion {number} of {asker}?"},
    ]
    asked = {"model": "bench", "messages": messages, "max_tokens": 16, "temperature": 0}
    return {**asked, "stream": streaming}


class Meter:
    """CPU time of a server's processes: the one that runs the model, and all others."""

    def __init__(self, roots: Sequence[int]) -> None:
        pids = sorted({pid for family in families(roots).values() for pid in family})
        self._engine = [pid for pid in pids if ENGINE_PROCESS in _command(pid)]
        self._others = [pid for pid in pids if pid not in set(self._engine)]

    def read_s(self) -> tuple[float, float]:
        """(all others, the engine's)."""
        return cpu_s(self._others), cpu_s(self._engine)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@contextmanager
def servers(model: Path, arms: Sequence[str], policy: str) -> Iterator[dict[str, list[Server]]]:
    """The arms' servers, the one to be asked first; an arm's others are what stands behind it."""
    with ExitStack() as stack:
        found: dict[str, list[Server]] = {}
        if set(arms) & {"sglang", "sglang+router"}:
            own = stack.enter_context(sglang_server(model))
            found["sglang"] = [own]
            if "sglang+router" in arms:
                found["sglang+router"] = [stack.enter_context(sglang_router([own])), own]
        if "prism" in arms:
            found["prism"] = [stack.enter_context(prism_server(model, policy))]
        yield {arm: found[arm] for arm in arms}


def block(asked: list[Server], bodies: Sequence[dict[str, Any]], idle_s: float) -> Block:
    """One request after the other. ``idle_s``: CPU seconds a second that the path takes anyway.

    Raises RuntimeError for an answer that is not one.
    """
    meter = Meter([server.pid for server in asked])
    before, start_s = meter.read_s(), time.perf_counter()
    rows = asyncio.run(_ask(asked[0].port, bodies))
    wall_s, after = time.perf_counter() - start_s, meter.read_s()
    path_s = max(0.0, after[0] - before[0] - idle_s * wall_s)
    return Block(
        1000
        * median(_since_sent(row, row.chunk_s[0] if row.chunk_s else row.ended_s) for row in rows),
        1000 * median(_since_sent(row, row.ended_s) for row in rows),
        1000 * path_s / len(rows),
        1000 * (after[1] - before[1]) / len(rows),
    )


async def _ask(port: int, bodies: Sequence[dict[str, Any]]) -> list[RequestRow]:
    requests = [PlannedRequest(0.0, each, path=CHAT) for each in bodies]
    async with open_client(f"http://127.0.0.1:{port}") as client:
        return await ClosedLoop(client, timeout_s=60.0).run(requests, 1)


def _since_sent(row: RequestRow, at_s: float | None) -> float:
    if row.outcome is not Outcome.ANSWERED or at_s is None or row.sent_s is None:
        raise RuntimeError(f"no answer: {row}")
    return at_s - row.sent_s


def idle_cpu_s(asked: list[Server], seconds: float) -> float:
    """CPU seconds a second of all but the engine while nobody asks."""
    meter = Meter([server.pid for server in asked])
    before, start_s = meter.read_s()[0], time.perf_counter()
    time.sleep(seconds)
    return (meter.read_s()[0] - before) / (time.perf_counter() - start_s)


def run(
    arms: Mapping[str, list[Server]],
    blocks: int,
    block_requests: int,
    say: Callable[[str], None],
    idle_seconds: float = IDLE_S,
) -> list[Row]:
    """All blocks of all arms, in turns; every request of a block is new to every server's cache."""
    names = list(arms)
    idle = {name: idle_cpu_s(arms[name], idle_seconds) for name in names}
    rows: list[Row] = []
    for streaming in (False, True):
        for name in names:  # code paths and caches warm
            block(arms[name], [body(n, streaming, name) for n in range(20)], 0.0)
        taken: dict[str, list[Block]] = {name: [] for name in names}
        for turn in range(blocks):
            numbers = range(100 + turn * block_requests, 100 + (turn + 1) * block_requests)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                bodies = [body(n, streaming, name) for n in numbers]
                taken[name].append(block(arms[name], bodies, idle[name]))
            say(f"  {'stream' if streaming else 'whole'} {turn + 1}/{blocks}")
        rows += [
            _row(name, streaming, found, taken.get(BASE), idle[name], block_requests)
            for name, found in taken.items()
        ]
    return rows


def _row(
    arm: str,
    streaming: bool,
    found: list[Block],
    base: list[Block] | None,
    idle_s: float,
    block_requests: int,
) -> Row:
    def added(name: str) -> tuple[float, float] | None:
        if base is None or arm == BASE:
            return None
        pairs = zip(found, base, strict=True)
        return mean_interval(
            [getattr(ours, name) - getattr(theirs, name) for ours, theirs in pairs]
        )

    return Row(
        arm,
        streaming,
        len(found) * block_requests,
        ttft_ms=median(b.ttft_ms for b in found),
        latency_ms=median(b.latency_ms for b in found),
        path_cpu_ms=fmean(b.path_cpu_ms for b in found),
        engine_cpu_ms=fmean(b.engine_cpu_ms for b in found),
        idle_cpu_ms_per_s=1000 * idle_s,
        added_ttft_ms=added("ttft_ms"),
        added_latency_ms=added("latency_ms"),
    )


def table(rows: Sequence[Row]) -> str:
    """Rows for a terminal."""

    def difference(found: tuple[float, float] | None) -> str:
        return "-" if found is None else f"{found[0]:+.1f} ± {found[1]:.1f}"

    lines = [
        f"{'arm':<15}{'form':<8}{'TTFT ms':>8}{'added':>14}{'ms':>8}{'added':>14}"
        f"{'path CPU':>10}{'engine':>8}{'idle ms/s':>11}"
    ]
    for row in rows:
        form = "stream" if row.streaming else "whole"
        lines.append(
            f"{row.arm:<15}{form:<8}{row.ttft_ms:>8.1f}{difference(row.added_ttft_ms):>14}"
            f"{row.latency_ms:>8.1f}{difference(row.added_latency_ms):>14}"
            f"{row.path_cpu_ms:>10.1f}{row.engine_cpu_ms:>8.1f}{row.idle_cpu_ms_per_s:>11.0f}"
        )
    return "\n".join(lines)


@click.command("server")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--arm", "arms", type=click.Choice(ARMS), multiple=True, default=ARMS)
@click.option("--model", "shape", type=click.Choice(["tiny", "19m"]), default="19m")
@click.option("--policy", default="qas", show_default=True)
@click.option("--blocks", type=click.IntRange(2), default=BLOCKS, show_default=True)
@click.option("--block-requests", type=click.IntRange(1), default=BLOCK_REQUESTS, show_default=True)
def server(
    json_path: Path | None,
    arms: tuple[str, ...],
    shape: str,
    policy: str,
    blocks: int,
    block_requests: int,
) -> None:
    """Measure latency and CPU at low load beside SGLang's own server and its router."""
    from loadgen.real.engines import random_model

    if "sglang+router" in arms and not router_is_installed():
        click.echo("left out: sglang+router (pip install sglang-router)", err=True)
        arms = tuple(arm for arm in arms if arm != "sglang+router")

    def say(text: str) -> None:
        click.echo(text, err=True)

    with servers(random_model(shape), arms, policy) as running:
        rows = run(running, blocks, block_requests, say)
    click.echo(table(rows))
    if json_path is not None:
        written: dict[str, Any] = {
            "commit": git_commit(),
            "model": f"random-{shape}",
            "policy": policy,
            "rows": [asdict(row) for row in rows],
        }
        json_path.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    server()
