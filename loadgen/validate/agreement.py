"""Where the real engine and the simulator agree, as numbers and verdicts. Runs nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from loadgen.intervals import mean_interval
from loadgen.real.bounds import run_bounds
from loadgen.validate.recording import Recording
from loadgen.validate.replay import Replayed, replay
from prism_ray.engine.limits import StepParams

EQUAL_SHARE = 0.95
HIT_RATE_POINTS = 1.0

Arm = tuple[str, str]
"""Policy and retention."""


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """(a): one real run against the model with the real batches.

    ``unequal``: request, real and modelled cached tokens, the first ten. ``b3`` bounds the hit rate.
    """

    policy: str
    retention: str
    seed: int
    requests: int
    equal: int
    equal_share: float
    hit_rate: float
    replayed_hit_rate: float
    evicted_pools: float
    replayed_evicted_pools: float
    prefill_batches: int
    crowded_batches: int
    chunked: int
    aborted: int
    retracted: int
    decode_steps: int
    steps: int
    same_size_steps: int
    unequal: tuple[tuple[str, int, int], ...]
    b3: float | None = None


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """(b): the mean over seeds of an arm's hit rate, real and on the simulator's own clock."""

    policy: str
    retention: str
    hit_rate: float
    simulated_hit_rate: float
    difference_points: float
    by_seed: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class RankRow:
    """Two arms whose real hit rates differ by more than the paired interval, and the simulated sign."""

    first: Arm
    second: Arm
    real_points: float
    interval_points: float
    simulated_points: float

    @property
    def agrees(self) -> bool:
        return (self.real_points > 0) == (self.simulated_points > 0)


def replayed_row(recording: Recording, params: StepParams, epoch: str) -> ReplayedRow:
    """Replay a recording and compare each admitted request's cached tokens. Raises BoundExceeded."""
    replayed: Replayed = replay(recording.run.submissions, recording.recorded, params, epoch=epoch)
    admitted = [row for row in recording.run.rows if row.cached_tokens is not None]
    pairs = [
        (row.request_id, row.cached_tokens or 0, replayed.cached_tokens.get(row.request_id, -1))
        for row in admitted
    ]
    equal = sum(real == model for _, real, model in pairs)
    prompt = sum(row.prompt_tokens for row in admitted)
    bounds = run_bounds(
        recording.run, params.pool_tokens, params.page_size, retracted=recording.retracted > 0
    )
    return ReplayedRow(
        policy=recording.policy,
        retention=recording.retention,
        seed=recording.seed,
        requests=len(pairs),
        equal=equal,
        equal_share=equal / len(pairs),
        hit_rate=recording.run.hit_rate,
        replayed_hit_rate=sum(max(0, model) for *_, model in pairs) / prompt,
        evicted_pools=recording.run.evicted_tokens / params.pool_tokens,
        replayed_evicted_pools=replayed.evicted_tokens / params.pool_tokens,
        prefill_batches=recording.prefill_batches,
        crowded_batches=recording.crowded_batches,
        chunked=recording.chunked_requests,
        aborted=recording.aborted,
        retracted=recording.retracted,
        decode_steps=sum(not step.prefill for step in recording.steps),
        steps=replayed.steps,
        same_size_steps=replayed.same_size,
        unequal=tuple(pair for pair in pairs if pair[1] != pair[2])[:10],
        b3=bounds.b3,
    )


def simulated_row(arm: Arm, by_seed: Sequence[tuple[float, float]]) -> SimulatedRow:
    """``by_seed``: real and simulated hit rate of every seed."""
    real, simulated = fmean(r for r, _ in by_seed), fmean(s for _, s in by_seed)
    return SimulatedRow(*arm, real, simulated, 100 * (simulated - real), tuple(by_seed))


def rank_rows(rows: Sequence[SimulatedRow]) -> list[RankRow]:
    """All pairs of arms that the real engine tells apart."""
    found = []
    for one, other in combinations(rows, 2):
        pairs = list(zip(one.by_seed, other.by_seed, strict=True))
        real, half = mean_interval([100 * (a[0] - b[0]) for a, b in pairs])
        if abs(real) > half:
            simulated = fmean(100 * (a[1] - b[1]) for a, b in pairs)
            arms = (one.policy, one.retention), (other.policy, other.retention)
            found.append(RankRow(*arms, real, half, simulated))
    return found


def as_json(
    replayed: Sequence[ReplayedRow],
    simulated: Sequence[SimulatedRow],
    ranks: Sequence[RankRow],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole report."""
    return {
        **about,
        "replayed": [asdict(row) for row in replayed],
        "simulated": [asdict(row) for row in simulated],
        "ranking": [{**asdict(row), "agrees": row.agrees} for row in ranks],
        "verdicts": verdicts(replayed, simulated, ranks),
    }


def verdicts(
    replayed: Sequence[ReplayedRow], simulated: Sequence[SimulatedRow], ranks: Sequence[RankRow]
) -> dict[str, bool]:
    """What was asked, and whether it holds."""
    return {
        "half_the_prefill_batches_are_shared_by_four": (
            2 * sum(r.crowded_batches for r in replayed) >= sum(r.prefill_batches for r in replayed)
        ),
        "evictions_are_twice_the_pool": all(r.evicted_pools >= 2 for r in replayed),
        "chunked_and_decoded": all(r.chunked and r.decode_steps for r in replayed),
        "aborted_in_the_engine": sum(r.aborted for r in replayed) >= len(replayed),
        "replayed_cached_tokens_equal": all(r.equal_share >= EQUAL_SHARE for r in replayed),
        "simulated_hit_rate_within_a_point": all(
            abs(r.difference_points) <= HIT_RATE_POINTS for r in simulated
        ),
        "ranking_agrees": all(r.agrees for r in ranks),
    }
