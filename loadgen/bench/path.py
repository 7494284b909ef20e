"""What a request costs on its way: CPU, requests/s and latency against ``bare`` and ``floor``.

The engine takes no time. The arms run on one Serve, one after the other in turns; the load comes from
this process, which is not counted.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median

import click

from loadgen.bench.http_load import Load, drive, request_bytes
from loadgen.bench.processes import cpu_s, families

ARMS = ("prism", "bare", "floor")
CHAT = "/v1/chat/completions"
CONCURRENCY = (1, 16, 64)
WARM_UP_S = 0.7
WINDOW_S = 4.0
REPEATS = 3
PARTS = ("proxy", "ingress", "actor", "replica")

_WORDS = "the long river of the city has many bridges and each of them a name and a story"


@dataclass(frozen=True)
class Sample:
    """One window of one arm. Milliseconds are per request; ``parts_ms`` has PARTS as keys."""

    cpu_ms_per_request: float
    requests_per_s: float
    latency_ms: float
    first_byte_ms: float
    parts_ms: dict[str, float]
    requests: int


@dataclass(frozen=True)
class Row:
    """Medians over the repeats of one combination; ``added_*`` are latency medians minus that arm's."""

    arm: str
    serve_mode: str
    concurrency: int
    streaming: bool
    cpu_ms_per_request: float
    requests_per_s: float
    latency_ms: float
    first_byte_ms: float
    cpu_vs_bare: float | None
    added_to_bare_ms: float | None
    added_to_floor_ms: float | None
    parts_ms: dict[str, float]
    repeats: int


def body(number: int, streaming: bool, passages: int = 2) -> bytes:
    """A RAG-like chat: a system text, marked passages out of 20, and a question of its own."""
    parts: list[dict[str, object]] = [
        {
            "type": "text",
            "text": f"Passage {(number + i) % 20}. " + _WORDS * 3,
            "prism": {"segment": f"p{(number + i) % 20}", "reorderable": True},
        }
        for i in range(passages)
    ]
    parts.append({"type": "text", "text": f"Question {number}?"})
    messages = [
        {"role": "system", "content": "Answer from the passages."},
        {"role": "user", "content": parts},
    ]
    return json.dumps({"messages": messages, "max_tokens": 16, "stream": streaming}).encode()


class Meter:
    """CPU time of one arm's processes, by part; the proxy's, which all arms share, included."""

    def __init__(self, processes: dict[int, tuple[str, str]], arm: str) -> None:
        self._families = {
            pid: family
            for pid, family in families(processes).items()
            if processes[pid][0] in (arm, "shared")
        }
        self._parts = {pid: processes[pid][1] for pid in self._families}

    def read_s(self) -> dict[str, float]:
        read = dict.fromkeys(PARTS, 0.0)
        for pid, family in self._families.items():
            read[self._parts[pid]] += cpu_s(family)
        return read


def measure(
    port: int,
    processes: dict[int, tuple[str, str]],
    arm: str,
    concurrency: int,
    streaming: bool,
    window_s: float,
) -> Sample:
    """One window. Raises BadAnswer."""
    requests = [request_bytes(port, f"/{arm}{CHAT}", body(n, streaming)) for n in range(64)]
    asyncio.run(drive(port, concurrency, _until(requests, WARM_UP_S)))
    meter = Meter(processes, arm)
    before = meter.read_s()
    load = asyncio.run(drive(port, concurrency, _until(requests, window_s)))
    after = meter.read_s()
    return sample_of(load, {part: after[part] - before[part] for part in PARTS})


def sample_of(load: Load, used_s: dict[str, float]) -> Sample:
    parts_ms = {part: 1000 * seconds / load.requests for part, seconds in used_s.items()}
    return Sample(
        sum(parts_ms.values()),
        load.requests / load.wall_s,
        1000 * median(load.latency_s),
        1000 * median(load.first_byte_s),
        parts_ms,
        load.requests,
    )


def _until(requests: list[bytes], seconds: float) -> Callable[[], bytes | None]:
    numbers, deadline = count(), time.perf_counter() + seconds

    def following() -> bytes | None:
        if time.perf_counter() >= deadline:
            return None
        return requests[next(numbers) % len(requests)]

    return following


Combination = tuple[str, int, bool]


def run_mode(
    mode: str,
    arms: tuple[str, ...],
    levels: tuple[int, ...],
    repeats: int,
    window_s: float,
    say: Callable[[str], None],
) -> list[Row]:
    """All rows of one Serve mode: every combination ``repeats`` times, the arms taking turns."""
    from loadgen.bench.path_stack import running

    samples: dict[Combination, list[Sample]] = {}
    with running(mode, arms) as stack:
        for repeat in range(repeats):
            for concurrency in levels:
                for streaming in (False, True):
                    turn = repeat % len(arms)
                    for arm in arms[turn:] + arms[:turn]:
                        sample = measure(
                            stack.port, stack.processes, arm, concurrency, streaming, window_s
                        )
                        samples.setdefault((arm, concurrency, streaming), []).append(sample)
                        say(
                            f"  {mode} {repeat + 1}/{repeats} {arm} c={concurrency} "
                            f"{'stream' if streaming else 'whole'}: "
                            f"{sample.cpu_ms_per_request:.2f} ms CPU"
                        )
        if "prism" in arms:
            ours = (
                s.requests for (arm, *_), found in samples.items() for s in found if arm == "prism"
            )
            check_decided(stack.port, sum(ours))
    return rows_of(mode, samples)


def check_decided(port: int, requests: int) -> None:
    """Our own figures count only if QAS decided: RuntimeError when ingresses dispatched by themselves."""
    import httpx

    state = httpx.get(f"http://127.0.0.1:{port}/prism/prism/state", timeout=10.0).json()
    dispatched = sum(replica["dispatched"] for replica in state["replicas"])
    if dispatched < requests:
        raise RuntimeError(f"QAS dispatched {dispatched} of {requests} requests")


def rows_of(mode: str, samples: dict[Combination, list[Sample]]) -> list[Row]:
    """One row a combination: medians, and the comparison with the other arms of the same one."""

    def middle(arm: str, key: tuple[int, bool], name: str) -> float | None:
        found = samples.get((arm, *key))
        return median(getattr(s, name) for s in found) if found else None

    rows = []
    for (arm, concurrency, streaming), found in samples.items():
        key = (concurrency, streaming)
        cpu = median(s.cpu_ms_per_request for s in found)
        latency = median(s.latency_ms for s in found)
        bare_cpu = middle("bare", key, "cpu_ms_per_request")
        bare, floor = middle("bare", key, "latency_ms"), middle("floor", key, "latency_ms")
        rows.append(
            Row(
                arm=arm,
                serve_mode=mode,
                concurrency=concurrency,
                streaming=streaming,
                cpu_ms_per_request=cpu,
                requests_per_s=median(s.requests_per_s for s in found),
                latency_ms=latency,
                first_byte_ms=median(s.first_byte_ms for s in found),
                cpu_vs_bare=cpu / bare_cpu if bare_cpu else None,
                added_to_bare_ms=None if bare is None else latency - bare,
                added_to_floor_ms=None if floor is None else latency - floor,
                parts_ms={part: median(s.parts_ms[part] for s in found) for part in PARTS},
                repeats=len(found),
            )
        )
    return rows


def table(rows: Iterable[Row]) -> str:
    """Rows for a terminal."""
    lines = [
        f"{'mode':<11}{'arm':<7}{'conc':>5} {'form':<7}{'CPU ms':>8}{'x bare':>8}{'req/s':>8}"
        f"{'ms':>8}{'ttfb':>8}   " + " ".join(f"{part:>8}" for part in PARTS)
    ]
    for row in sorted(rows, key=lambda r: (r.serve_mode, r.concurrency, r.streaming, r.arm)):
        ratio = f"{row.cpu_vs_bare:.2f}" if row.cpu_vs_bare is not None else "-"
        lines.append(
            f"{row.serve_mode:<11}{row.arm:<7}{row.concurrency:>5} "
            f"{'stream' if row.streaming else 'whole':<7}{row.cpu_ms_per_request:>8.2f}{ratio:>8}"
            f"{row.requests_per_s:>8.0f}{row.latency_ms:>8.1f}{row.first_byte_ms:>8.1f}   "
            + " ".join(f"{row.parts_ms[part]:>8.2f}" for part in PARTS)
        )
    return "\n".join(lines)


@click.command("path")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--serve-mode",
    "modes",
    type=click.Choice(["stock", "throughput", "haproxy"]),
    multiple=True,
    default=["haproxy"],
    show_default=True,
)
@click.option("--arm", "arms", type=click.Choice(ARMS), multiple=True, default=ARMS)
@click.option(
    "--concurrency",
    "levels",
    type=click.IntRange(1),
    multiple=True,
    default=CONCURRENCY,
    show_default=True,
)
@click.option("--repeats", type=click.IntRange(1), default=REPEATS, show_default=True)
@click.option("--window-s", type=click.FloatRange(0.5), default=WINDOW_S, show_default=True)
def path(
    json_path: Path | None,
    modes: tuple[str, ...],
    arms: tuple[str, ...],
    levels: tuple[int, ...],
    repeats: int,
    window_s: float,
) -> None:
    """Measure what the way of a request costs, against two applications with none of our code."""
    rows: list[Row] = []
    for mode in modes:
        rows += run_mode(mode, arms, levels, repeats, window_s, lambda s: click.echo(s, err=True))
    click.echo(table(rows))
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    path()
