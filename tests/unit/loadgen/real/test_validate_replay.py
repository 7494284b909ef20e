"""A replay of recorded batches: the model follows, and its cache does what it did on its own."""

from __future__ import annotations

import random

from loadgen.real.cluster import RealArrival, Submission
from loadgen.validate.replay import evicted_by_class, replay
from prism_ray.engine.batch import Batch, PrefillPlan
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.engine.sglang_steps import (
    ABORTED,
    QUEUED,
    BatchEntry,
    QueueRecord,
    Recorded,
    StepRecord,
)
from prism_ray.engine.step_model import StepModel
from prism_ray.model import NO_GAP, Decision, Lane, Segment, SegmentKind, Skeleton, Ticket

PARAMS = StepParams(
    pool_tokens=400,
    context_length=400,
    max_running=5,
    chunked_prefill_tokens=60,
    retention="lru",
)


class Witness(StepModel):
    """A step model that records itself as the real engine's scheduler does."""

    def __init__(self) -> None:
        super().__init__(PARAMS, CostModel(base_s=1.0))
        self.recorded: list[Recorded] = []
        self.cached: dict[str, int] = {}
        self._looked_up: list[str] = []

    def _admit_head(self, batch: Batch, plan: PrefillPlan) -> bool:
        self._looked_up.append(self._waiting[0].id)
        return super()._admit_head(batch, plan)

    def turn(self) -> bool:
        """One whole step; False if there is nothing to do."""
        computed = {s.id: s.computed for s in self._sequences.values()}
        self._looked_up = []
        begun = self.begin_step()
        if begun is None or self._current is None:
            return False
        self.cached |= {a.request_id: a.cached_tokens for a in begun.admitted}
        entries = tuple(
            BatchEntry(e.sequence.id, max(computed[e.sequence.id], 0), e.kv_tokens)
            for e in self._current.entries
        )
        self.recorded.append(
            StepRecord(
                self._current.prefill,
                0.0,
                1.0,
                entries,
                (),
                tuple(self._looked_up),
                (),
                self.cache.tree.total_tokens,
            )
        )
        self.end_step()
        return True


def submissions(count: int, seed: int) -> list[Submission]:
    rng = random.Random(seed)
    system = Segment(b"system", 10, SegmentKind.SYSTEM)
    documents = [Segment(b"document %d" % n, 15, run=0) for n in range(12)]
    made = []
    for number in range(count):
        segments = tuple(rng.sample(documents, 3))
        private = 90 if number % 7 == 3 else 12
        skeleton = Skeleton(system, segments, (NO_GAP,) * 3, private)
        output = rng.choice((1, 3, 6))
        name = f"r{number}"
        arrival = RealArrival(Ticket(name, skeleton, 0.0, max_new_tokens=output), output)
        decision = Decision(name, 0, "", "replica", 1, 0, (0, 1, 2), Lane.COLD, 0.0, 0)
        made.append(Submission(f"engine-{name}", arrival, decision, None))
    return made


def in_engine_ids(records: list[Recorded]) -> list[Recorded]:
    """The records as the real engine names requests."""
    told: list[Recorded] = []
    for record in records:
        if isinstance(record, QueueRecord):
            told.append(record)
            continue
        entries = tuple(BatchEntry(f"engine-{e.request_id}", *e[1:]) for e in record.entries)
        matched = tuple(f"engine-{name}" for name in record.matched)
        told.append(
            StepRecord(record.prefill, 0.0, 1.0, entries, (), matched, (), record.resident_tokens)
        )
    return told


def run_alone(given: list[Submission], seed: int, aborts: int) -> Witness:
    from loadgen.validate.replay import sim_request

    rng, witness, waiting = random.Random(seed), Witness(), list(given)
    while waiting or len(witness):
        for _ in range(rng.randrange(4)):
            if waiting:
                submission = waiting.pop(0)
                witness.submit(sim_request(submission, ""))
                witness.recorded.append(QueueRecord(QUEUED, 0.0, submission.engine_id))
        queued = [s.id for s in witness._waiting]
        if aborts and queued and rng.random() < 0.3:
            aborts -= 1
            name = queued[-1]
            witness.abort(name)
            witness.recorded.append(QueueRecord(ABORTED, 0.0, f"engine-{name}"))
        witness.turn()
    return witness


def test_the_same_batches_give_the_same_cache() -> None:
    for seed in range(6):
        given = submissions(60, seed)
        alone = run_alone(given, seed, aborts=5)
        again = replay(given, in_engine_ids(alone.recorded), PARAMS)
        assert again.cached_tokens == alone.cached
        assert again.same_size == again.steps > 60
        assert again.overfull == 0
        assert again.evicted_tokens == alone.cache.evicted_tokens > 2 * PARAMS.pool_tokens


def test_evicted_tokens_are_told_apart_by_what_they_were() -> None:
    given = submissions(60, 1)
    alone = run_alone(given, 1, aborts=0)
    again = replay(given, in_engine_ids(alone.recorded), PARAMS)
    classes = evicted_by_class(again, given)
    assert sum(classes.values()) == again.evicted_tokens
    # Every private token goes in the end, but for the few that are still there.
    private = sum(s.arrival.ticket.skeleton.private_tokens for s in given)
    assert 0 < private - classes["private"] < PARAMS.pool_tokens
    assert classes["reusable"] > 0
    assert classes["generated"] > 0
