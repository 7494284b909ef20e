"""Whether anything grows with the requests served: resident memory of every part, and our tables after.

No two requests share a segment, so whatever remembers by text meets only new texts. ``bare`` says what
Ray Serve itself keeps.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from loadgen.bench.http_load import drive, request_bytes
from loadgen.bench.processes import rss_bytes

CHAT = "/v1/chat/completions"
ARMS = ("prism", "bare")
PARTS = ("ingress", "actor", "replica")
CONCURRENCY = 16
SAMPLES = 200
CURVE = 20
WARM_UP = 0.2
"""Share of the run that is not looked at: caches fill up to their bounds."""

CANCELLED_MAX = 4096
HANDLES_MAX = 1024
"""Bounds of tables (``serving.qas_actor``, ``serving.inference``): named here since those import Ray."""

TOKEN_CACHE_TOKENS = 1_000_000
"""The ingress's largest table; passages are so long that it fills while the run warms up."""

_SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "ra", "se", "ti", "vo", "zu")


@dataclass(frozen=True)
class Row:
    """One part of one arm; ``slope`` over the last 80% of its requests, least squares."""

    arm: str
    part: str
    serve_mode: str
    requests: int
    slope_bytes_per_request: float
    rss_start_bytes: int
    rss_end_bytes: int
    curve_bytes: tuple[int, ...]
    """Resident memory at even distances over the whole run: a leak is a line, a filling table is not."""


def slope(points: Sequence[tuple[int, int]]) -> float:
    """Bytes a request by least squares over (requests, bytes). ValueError for fewer than two counts."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count if count else 0.0
    mean_y = sum(y for _, y in points) / count if count else 0.0
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        raise ValueError(f"{count} points at one count have no slope")
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def passage_words(requests: int) -> int:
    """Words of a passage (two a request) that fill the token cache within the warm-up."""
    return max(32, int(1.5 * TOKEN_CACHE_TOKENS / (WARM_UP * requests) / 2))


def distinct_bodies(words: int, seed: int = 0) -> Callable[[], bytes]:
    """Chat bodies of two passages each; every passage is a new one."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices(_SYLLABLES, k=3)) for _ in range(2000)]

    def following() -> bytes:
        parts: list[dict[str, Any]] = [
            {
                "type": "text",
                "text": f"{rng.getrandbits(64):016x} " + " ".join(rng.choices(vocabulary, k=words)),
                "prism": {"segment": f"s{number}", "reorderable": True},
            }
            for number in range(2)
        ]
        parts.append({"type": "text", "text": "Which?"})
        return json.dumps(
            {"messages": [{"role": "user", "content": parts}], "max_tokens": 4}
        ).encode()

    return following


def measure(
    port: int, pids: dict[str, int], arm: str, mode: str, requests: int, words: int
) -> list[Row]:
    """Serve ``requests`` on one arm and watch its parts' memory. Raises BadAnswer."""
    step = max(1, requests // SAMPLES)
    points: dict[str, list[tuple[int, int]]] = {part: [] for part in pids}
    body = distinct_bodies(words)
    sent = 0

    def following() -> bytes | None:
        nonlocal sent
        if sent % step == 0:
            for part, pid in pids.items():
                points[part].append((sent, rss_bytes(pid)))
        if sent >= requests:
            return None
        sent += 1
        return request_bytes(port, f"/{arm}{CHAT}", body())

    asyncio.run(drive(port, CONCURRENCY, following))
    return [rows_of(arm, part, mode, requests, seen) for part, seen in points.items()]


def beyond_bounds(books: dict[str, Any]) -> list[str]:
    """What an idle application must not hold: anything of a request, or a table over its bound."""
    empty = {
        **{f"qas {name}": count for name, count in books["qas"].items()},
        **{f"window {name}": count for name, count in books["window"].items()},
        **{f"replica {name}": count for name, count in books["replica"].items()},
        **{
            f"seat {seat['replica']} {name}": seat[name]
            for seat in books["seats"]
            for name in ("sent", "not_prefilled", "foreign")
        },
        "qas deadlines": books["qas_tables"]["deadlines"],
        "ingress held_bytes": books["ingress_tables"]["held_bytes"],
        "ingress loaded_replicas": books["ingress_tables"]["loaded_replicas"],
    }
    bounded = {
        "qas ingresses": (books["qas_tables"]["ingresses"], 1),
        "qas cancelled_early": (books["qas_tables"]["cancelled_early"], CANCELLED_MAX),
        "ingress handles": (books["ingress_tables"]["handles"], HANDLES_MAX),
        "ingress cached_text_tokens": (
            books["ingress_tables"]["cached_text_tokens"],
            TOKEN_CACHE_TOKENS,
        ),
        **{
            f"seat {seat['replica']} resident_tokens": (
                seat["resident_tokens"],
                seat["pool_tokens"],
            )
            for seat in books["seats"]
        },
    }
    return [f"{name}: {count}, not 0" for name, count in empty.items() if count] + [
        f"{name}: {count} > {bound}" for name, (count, bound) in bounded.items() if count > bound
    ]


def rows_of(arm: str, part: str, mode: str, requests: int, seen: list[tuple[int, int]]) -> Row:
    late = [(x, y) for x, y in seen if x >= WARM_UP * requests]
    curve = tuple(held for _, held in seen[:: max(1, len(seen) // CURVE)])
    return Row(arm, part, mode, requests, slope(late), seen[0][1], seen[-1][1], curve)


@click.command("memory")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result here.")
@click.option("--requests", type=click.IntRange(1000), default=100_000, show_default=True)
@click.option(
    "--serve-mode",
    "mode",
    type=click.Choice(["stock", "throughput", "haproxy"]),
    default="haproxy",
    show_default=True,
)
@click.option("--arm", "arms", type=click.Choice(ARMS), multiple=True, default=ARMS)
def memory(json_path: Path | None, requests: int, mode: str, arms: tuple[str, ...]) -> None:
    """Measure memory growth per request, and look into our tables when all is answered."""
    from loadgen.bench.path_stack import running

    rows: list[Row] = []
    books: dict[str, Any] = {}
    words = passage_words(requests)
    click.echo(f"{'arm':<8}{'part':<10}{'bytes/request':>14}{'start MiB':>11}{'end MiB':>9}")
    with running(mode, arms) as stack:
        for arm in arms:
            pids = {part: pid for pid, (a, part) in stack.processes.items() if a == arm}
            for row in measure(stack.port, pids, arm, mode, requests, words):
                rows.append(row)
                click.echo(
                    f"{row.arm:<8}{row.part:<10}{row.slope_bytes_per_request:>14.1f}"
                    f"{row.rss_start_bytes / 2**20:>11.1f}{row.rss_end_bytes / 2**20:>9.1f}"
                )
        if "prism" in arms:
            books = stack.ask("books")
    click.echo(json.dumps(books, indent=2))
    if json_path is not None:
        result = {"rows": [asdict(row) for row in rows], "books": books}
        json_path.write_text(json.dumps(result, indent=2) + "\n")
    if books and (wrong := beyond_bounds(books)):
        raise click.ClickException("left behind: " + "; ".join(wrong))


if __name__ == "__main__":
    memory()
