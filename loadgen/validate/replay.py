"""The step model with the real engine's batches: does its cache say what the real one said?

Everything that decides which request gets which batch is taken from the recording; matching,
insertion, locking, demand and eviction are the model's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.real.cluster import Submission
from prism_ray.dart import Matched, skeleton_anchors
from prism_ray.engine.batch import Batch, PrefillPlan
from prism_ray.engine.limits import StepParams
from prism_ray.engine.sequence import Sequence as ModelSequence
from prism_ray.engine.sequence import SimRequest, Stage
from prism_ray.engine.sglang_steps import (
    ABORTED,
    QUEUED,
    BatchEntry,
    QueueRecord,
    Recorded,
    StepRecord,
)
from prism_ray.engine.step_model import StepModel
from prism_ray.model import Atom, Outcome


@dataclass(slots=True)
class Replayed:
    """What the model's cache made of a recording: cached tokens by request id, evicted ones by atom.

    ``overfull``: batches for which the model had less room than the real engine. ``steps`` batches
    were replayed; in ``same_size`` of them both caches held as many tokens.
    """

    cached_tokens: dict[str, int] = field(default_factory=dict)
    evicted_atoms: Counter[bytes] = field(default_factory=Counter)
    overfull: int = 0
    steps: int = 0
    same_size: int = 0

    @property
    def evicted_tokens(self) -> int:
        return self.evicted_atoms.total()


class DictatedModel(StepModel):
    """A step model that is told its batches."""

    def __init__(self, params: StepParams) -> None:
        super().__init__(params)
        self.overfull = 0
        self.evicted_atoms: Counter[bytes] = Counter()
        self.resident_tokens = 0
        self._dictated: StepRecord | None = None

    def follow(self, record: StepRecord) -> dict[str, int]:
        """Run a recorded batch; cached tokens of those it admitted."""
        self._dictated = record
        begun = self.begin_step()
        self._dictated = None
        self.resident_tokens = self.cache.tree.total_tokens
        if begun is None:
            return {}
        self.end_step()
        return {admitted.request_id: admitted.cached_tokens for admitted in begun.admitted}

    def abort_recorded(self, request_id: str) -> None:
        """As SGLang does it: what runs stays for one more batch, what waits goes at once."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.stage is Stage.RUNNING:
            sequence.aborting = True
        else:
            self.abort(request_id)

    def retract_recorded(self, request_id: str) -> None:
        """Send a running request back to the queue."""
        victim = self._sequences[request_id]
        self._running.remove(victim)
        self.pool.release(victim)
        victim.admission += 1
        victim.reset()
        self._waiting.append(victim)

    def _form(self) -> Batch | None:
        record = self._dictated
        if record is None:
            return None
        for request_id in record.touched:
            if (sequence := self._sequences.get(request_id)) is not None:
                self.cache.match(sequence.path, sequence.fill_tokens)
        return self._dictated_prefill(record) if record.prefill else self._dictated_decode(record)

    def _dictated_prefill(self, record: StepRecord) -> Batch:
        batch, plan = Batch(prefill=True), PrefillPlan(self.params, 0.0)
        if self._chunked is not None:
            self.pool.share(self._chunked, self._chunked.computed)
        entries = {entry.request_id: entry for entry in record.entries}
        if self._chunked is not None and self._chunked.id in entries:
            self._continue_to(batch, plan, self._chunked, entries.pop(self._chunked.id))
        for number, request_id in enumerate(record.matched):
            sequence = self._sequences.get(request_id)
            if sequence is None or sequence.stage is not Stage.WAITING:
                continue
            entry = entries.get(request_id)
            if entry is None or request_id in record.matched[number + 1 :]:
                self._look_up(sequence)
            else:
                self._admit_to(batch, plan, sequence, entry)
        self._make_room(plan.pool_tokens)
        for model_entry in batch.entries:
            self.pool.grow(model_entry.sequence, model_entry.kv_tokens)
        return batch

    def _continue_to(
        self, batch: Batch, plan: PrefillPlan, sequence: ModelSequence, entry: BatchEntry
    ) -> None:
        if entry.end == sequence.fill_tokens:
            self._chunked = None
        self._prefill(batch, plan, sequence, entry.end - sequence.computed)

    def _admit_to(
        self, batch: Batch, plan: PrefillPlan, sequence: ModelSequence, entry: BatchEntry
    ) -> None:
        matched = self._look_up(sequence)
        self.cache.lock(matched.node)
        sequence.node, sequence.in_tree = matched.node, matched.tokens
        self._waiting.remove(sequence)
        sequence.admission += 1
        sequence.computed = sequence.settled = matched.tokens
        if sequence.cached_tokens is None:
            self._count_admission(batch, sequence, matched.tokens)
        if entry.end < sequence.fill_tokens:
            self._chunked = sequence
        self._prefill(batch, plan, sequence, max(1, entry.end - matched.tokens))

    def _look_up(self, sequence: ModelSequence) -> Matched:
        request = sequence.request
        if request.table is not None:
            self.cache.hint(request.table, request.epoch)
        return self.cache.match(sequence.path, sequence.fill_tokens - 1)

    def _dictated_decode(self, record: StepRecord) -> Batch:
        members = [self._sequences[e.request_id] for e in record.entries if self._runs(e)]
        for request_id in record.matched:
            sequence = self._sequences.get(request_id)
            if sequence is not None and sequence.stage is Stage.WAITING:
                self._look_up(sequence)
        self._make_room(sum(self.pool.need(s, s.computed + 1) for s in members))
        batch = Batch(prefill=False)
        for sequence in members:
            self.pool.grow(sequence, sequence.computed + 1)
            sequence.computed += 1
            sequence.launched += 1
            batch.add(sequence, sequence.computed)
        return batch

    def _runs(self, entry: BatchEntry) -> bool:
        sequence = self._sequences.get(entry.request_id)
        return sequence is not None and sequence.stage is Stage.RUNNING

    def _make_room(self, tokens: int) -> None:
        missing = tokens - self.pool.free_tokens
        if missing > self.cache.tree.evictable_tokens:
            self.overfull += 1
        if missing > 0:
            for node in self.cache.evict(min(missing, self.cache.tree.evictable_tokens)).nodes:
                for piece in node.pieces:
                    self.evicted_atoms[piece.id] += piece.length


def replay(
    submissions: Sequence[Submission],
    recorded: Iterable[Recorded],
    params: StepParams,
    epoch: str = "",
) -> Replayed:
    """Give the model what the real engine was given, batch by batch.

    Records of requests that are not among the submissions are left out.
    """
    model = DictatedModel(params)
    by_engine_id = {s.engine_id: s for s in submissions}
    names = {engine_id: s.arrival.ticket.request_id for engine_id, s in by_engine_id.items()}
    done = Replayed()
    for record in recorded:
        if isinstance(record, QueueRecord):
            if record.request_id in by_engine_id:
                _queue(model, record, by_engine_id[record.request_id], epoch)
            continue
        ours = _renamed(record, names)
        if ours.entries:
            done.cached_tokens |= model.follow(ours)
            done.steps += 1
            done.same_size += model.resident_tokens == record.resident_tokens
    model.close(Outcome.ABORTED)
    done.evicted_atoms = model.evicted_atoms
    done.overfull = model.overfull
    return done


def _queue(model: DictatedModel, record: QueueRecord, given: Submission, epoch: str) -> None:
    request_id = given.arrival.ticket.request_id
    if record.kind == ABORTED:
        model.abort_recorded(request_id)
    elif record.kind == QUEUED:
        model.submit(sim_request(given, epoch))
    else:
        model.retract_recorded(request_id)


def _renamed(record: StepRecord, names: Mapping[str, str]) -> StepRecord:
    return StepRecord(
        record.prefill,
        record.begin_s,
        record.end_s,
        tuple(
            BatchEntry(names[e.request_id], e.start, e.end)
            for e in record.entries
            if e.request_id in names
        ),
        tuple(names[i] for i in record.touched if i in names),
        tuple(names[i] for i in record.matched if i in names),
        tuple(names[i] for i in record.waiting if i in names),
        record.resident_tokens,
    )


def sim_request(given: Submission, epoch: str) -> SimRequest:
    """A submission as the step model takes it."""
    arrival, order = given.arrival, given.decision.order
    ticket = arrival.ticket
    own = (Atom(b"output of " + ticket.request_id.encode(), arrival.output_tokens),)
    return SimRequest(
        ticket.request_id,
        arrival.prompt(order),
        arrival.output or own,
        skeleton_anchors(ticket.skeleton, order)[:-1],
        max_new_tokens=ticket.max_new_tokens or None,
        table=given.table,
        epoch=epoch,
    )


def evicted_by_class(replayed: Replayed, submissions: Sequence[Submission]) -> dict[str, int]:
    """Evicted tokens by what they were: system, reusable, private or generated."""
    named: dict[bytes, str] = {}
    for given in submissions:
        skeleton = given.arrival.ticket.skeleton
        named |= dict.fromkeys((atom.id for atom in given.arrival.prompt(())), "private")
        named |= dict.fromkeys((gap.id for gap in skeleton.gaps), "reusable")
        named |= dict.fromkeys((segment.id for segment in skeleton.segments), "reusable")
        if skeleton.system is not None:
            named[skeleton.system.id] = "system"
    tokens = dict.fromkeys(("system", "reusable", "private", "generated"), 0)
    for atom_id, count in replayed.evicted_atoms.items():
        tokens[named.get(atom_id, "generated")] += count
    return tokens
