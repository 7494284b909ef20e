"""The real half of the validation: runs on a real engine whose steps are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.real.cluster import StartedEngine
from loadgen.real.session import RealRun, run_policy
from loadgen.real.steps_file import StepsFile
from loadgen.real.token_ids import AtomTokens
from loadgen.validate.trace import validation_arrivals
from prism_ray.engine.sglang_steps import (
    ABORTED,
    RETRACTED,
    QueueRecord,
    Recorded,
    StepRecord,
)

CROWD = 4
"""So many requests share a prefill batch in at least half the batches (issue of the validation)."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One run and what its engine's scheduler recorded of it."""

    policy: str
    retention: str
    seed: int
    run: RealRun
    recorded: tuple[Recorded, ...]

    @property
    def steps(self) -> list[StepRecord]:
        return [r for r in self.recorded if isinstance(r, StepRecord)]

    @property
    def prefill_batches(self) -> int:
        return sum(step.prefill for step in self.steps)

    @property
    def crowded_batches(self) -> int:
        """Prefill batches that at least four requests share."""
        return sum(step.prefill and len(step.entries) >= CROWD for step in self.steps)

    @property
    def chunked_requests(self) -> int:
        """Requests whose prefill took more than one batch."""
        parts: dict[str, int] = {}
        for step in self.steps:
            for entry in step.entries if step.prefill else ():
                parts[entry.request_id] = parts.get(entry.request_id, 0) + 1
        return sum(count > 1 for count in parts.values())

    def count(self, kind: str) -> int:
        """Queue records of a kind."""
        return sum(isinstance(r, QueueRecord) and r.kind == kind for r in self.recorded)

    @property
    def aborted(self) -> int:
        """Requests that were given up inside the engine."""
        return self.count(ABORTED)

    @property
    def retracted(self) -> int:
        return self.count(RETRACTED)

    @property
    def plan_delays_s(self) -> list[float]:
        """From the decision until the request is in the engine's queue, of each submission."""
        queued = {r.request_id: r.at_s for r in self.recorded if isinstance(r, QueueRecord)}
        decided = {row.request_id: row.decided_s for row in self.run.rows}
        delays = []
        for given in self.run.submissions:
            at_s, decided_s = queued.get(given.engine_id), decided[given.arrival.ticket.request_id]
            if at_s is not None and decided_s is not None:
                delays.append(at_s - self.run.began_s - decided_s)
        return delays


async def record(
    engine: StartedEngine,
    steps: StepsFile,
    tokens: AtomTokens,
    *,
    policy: str,
    retention: str,
    seeds: Sequence[int],
    count: int,
    rate: float,
) -> list[Recording]:
    """The validation trace of every seed under one policy."""
    made = []
    for seed in seeds:
        name = f"{policy}/{retention}/{seed}"
        steps.take()
        run = await run_policy(
            engine,
            validation_arrivals(seed, count, rate),
            tokens,
            policy=policy,
            epoch=name,
            run_name=name,
        )
        made.append(Recording(policy, retention, seed, run, steps.take()))
    return made
