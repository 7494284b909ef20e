"""A document gets hot in one step and cools again: how fast placement follows. In virtual time.

Every request shares one document and computes a private rest; the rates are multiples of what one
replica can do with the document in its cache. All figures are simulated, none is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from loadgen.virtual import Arrival, Delays, Served, VirtualCluster
from prism_ray.dispatch import Dispatcher
from prism_ray.engine.profile import load_profile
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton, Ticket
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler

DOCUMENT_TOKENS = 8_000
PRIVATE_TOKENS = 1_500
OUTPUT_TOKENS = 8
COOL_SHARE = 0.05
"""Rate after it cooled, of one replica's capacity."""


@dataclass(frozen=True)
class Phases:
    """Seconds at one replica's capacity, at ``factor`` times that, and after it cooled."""

    before_s: float = 120.0
    hot_s: float = 120.0
    cool_s: float = 420.0
    factor: float = 5.0


@dataclass(frozen=True)
class Outcome:
    placement: str
    policy: str
    replicas: int
    seed: int
    capacity_rps: float
    requests: int
    replicas_before: int
    second_copy_s: float | None
    """From the step to the first decision for a replica that had not served the document."""
    p99_before_s: float
    """TTFT in the minute before the step; after it minute by minute."""
    p99_by_minute_s: tuple[float, ...]
    replicas_hot: int
    given_up_s: float | None
    """From cooling until the document went to one replica only, to the end."""


def capacity(policy: str) -> float:
    """Requests/s of one replica that has the document: a backlog is served, its middle half timed."""
    served = list(_serve(policy, "single", 1, [0.0] * 400).values())
    ends = sorted(request.finished_s or 0.0 for request in served)
    return 200 / (ends[300] - ends[100])


def study(placement: str, policy: str, replicas: int, seed: int, phases: Phases) -> Outcome:
    one = capacity(policy)
    step_s = phases.before_s
    cool_s = step_s + phases.hot_s
    arrivals = list(_arrivals(one, phases, np.random.default_rng(seed)))
    served = sorted(_serve(policy, placement, replicas, arrivals).values(), key=_decided)
    before = {r.replica for r in served if _decided(r) < step_s}
    new = [_decided(r) for r in served if _decided(r) >= step_s and r.replica not in before]
    hot = {r.replica for r in served if step_s <= _decided(r) < cool_s}
    cooled = [r for r in served if r.arrival_s >= cool_s]
    last = cooled[-1].replica
    others = [_decided(r) for r in cooled if r.replica != last]
    minutes = [step_s + 60.0 * n for n in range(int(phases.hot_s // 60.0))]
    return Outcome(
        placement,
        policy,
        replicas,
        seed,
        one,
        len(served),
        len(before),
        new[0] - step_s if new else None,
        _p99(served, step_s - 60.0, step_s),
        tuple(_p99(served, start, start + 60.0) for start in minutes),
        len(hot),
        max(0.0, max(others) - cool_s) if others else 0.0,
    )


def _decided(request: Served) -> float:
    assert request.decided_s is not None
    return request.decided_s


def _p99(served: list[Served], start_s: float, end_s: float) -> float:
    chosen = [r.ttft_s for r in served if start_s <= r.arrival_s < end_s]
    return float(np.quantile(chosen, 0.99))


def _arrivals(one: float, phases: Phases, rng: np.random.Generator) -> Iterator[float]:
    start_s = 0.0
    for length_s, rate in (
        (phases.before_s, one),
        (phases.hot_s, one * phases.factor),
        (phases.cool_s, one * COOL_SHARE),
    ):
        at_s = start_s
        while (at_s := at_s + float(rng.exponential(1 / rate))) < start_s + length_s:
            yield at_s
        start_s += length_s


def _serve(policy: str, placement: str, replicas: int, arrivals: list[float]) -> dict[str, Served]:
    profile = load_profile("a800-qwen3-4b")
    params = profile.params()
    dispatcher = Dispatcher(make_scheduler(policy), make_placement(placement), "simulated")
    cluster = VirtualCluster(
        dispatcher,
        params,
        profile.cost,
        replicas=replicas,
        max_running=params.max_running,
        delays=Delays(0.001, 0.001),
    )
    document = Segment(b"document", DOCUMENT_TOKENS, SegmentKind.DOCUMENT)
    skeleton = Skeleton(None, (document,), (NO_GAP,), PRIVATE_TOKENS)
    return cluster.run(
        Arrival(Ticket(f"{n:032x}", skeleton, at_s, OUTPUT_TOKENS), OUTPUT_TOKENS)
        for n, at_s in enumerate(arrivals)
    )


@click.command("hot-document")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--placement", "placements", multiple=True, default=["e2"], show_default=True)
@click.option("--policy", default="qas", show_default=True)
@click.option("--replicas", type=click.IntRange(2), default=8, show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, default=[0], show_default=True)
def hot_document(
    json_path: Path | None,
    placements: tuple[str, ...],
    policy: str,
    replicas: int,
    seeds: tuple[int, ...],
) -> None:
    """Simulate a document that goes to five times one replica's capacity in one step."""
    rows = []
    for placement in placements:
        for seed in seeds:
            row = study(placement, policy, replicas, seed, Phases())
            rows.append(row)
            minutes = ", ".join(f"{value:.3f}" for value in row.p99_by_minute_s)
            second = "never" if row.second_copy_s is None else f"{row.second_copy_s:.2f} s"
            click.echo(
                f"simulated {placement}, seed {seed}: one replica does {row.capacity_rps:.1f}/s; "
                f"replicas {row.replicas_before} before, {row.replicas_hot} hot; next copy after "
                f"{second}; P99 TTFT {row.p99_before_s:.3f} s before, by minute {minutes} s; "
                f"one replica again {row.given_up_s:.0f} s after it cooled"
            )
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    hot_document()
