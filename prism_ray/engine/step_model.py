"""A pure model of an inference engine, one batch a step: batch former, KV pool, prefix cache.

It follows SGLang's default scheduler: continuous batching, prefill first, chunked prefill, FCFS with
head-of-line blocking, leaf eviction before allocation, retraction when decode runs out of pool. The
simulated engine drives it in real time, the load generator in virtual time; it has no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from prism_ray.dart import CacheObserver, DemandState, Future, PrefixCache
from prism_ray.engine.batch import (
    Admitted,
    Batch,
    Ended,
    PrefillPlan,
    Step,
    StepEnd,
    StepResult,
)
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.engine.pool import KvPool
from prism_ray.engine.sequence import Sequence, SimRequest, Stage
from prism_ray.model import Atom, Outcome
from prism_ray.scheduling import REFRESH_PASSES

_CLIP_RESERVE = 4096
_LOOK_AHEAD_REQUESTS = 128

Paths = Iterable[tuple[Atom, ...]]


class RequestTooLong(ValueError):
    """The request could never fit: prompt and output limit exceed the pool or the context."""


class StepModel:
    """Requests in, batches out: ``submit``, ``abort``, then ``begin_step`` / ``end_step`` in turn.

    Requests may be submitted and aborted between the two. ``step`` does both at once for callers in
    virtual time. Everything is deterministic in the sequence of calls.
    """

    def __init__(
        self,
        params: StepParams,
        cost: CostModel | None = None,
        *,
        refreshed: Callable[[], Paths] | None = None,
        observer: CacheObserver | None = None,
        future: Future | None = None,
    ) -> None:
        """``refreshed`` gives paths that wait elsewhere, to be refreshed like those of the requests that
        wait here, in that order; with it ``refresh_waiting_prefixes`` is on. ``observer`` hears what
        the cache keeps; ``future`` is what retention ``belady`` must know."""
        self.params = params
        self._refreshed = refreshed
        self._refreshes = params.refresh_waiting_prefixes or refreshed is not None
        self.cost = cost or CostModel()
        self.cache = PrefixCache(
            params.retention,
            pool_tokens=params.pool_tokens,
            page_size=params.page_size,
            anchor_rank=params.anchor_rank,
            protect_anchors=params.protect_anchors,
            protect_share=params.protect_share,
            observer=observer,
            demand=None if future is None else DemandState(future=future),
        )
        self.pool = KvPool(params.pool_tokens, self.cache)
        self.retractions = 0
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0
        self.output_tokens_total = 0
        self._sequences: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._chunked: Sequence | None = None
        self._running: list[Sequence] = []
        self._current: Batch | None = None
        self._prepared: Batch | None = None
        self._passes = 0

    # Requests

    def check_fits(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Raise RequestTooLong if such a request could never be served."""
        longest = self.params.longest_request_tokens
        if prompt_tokens + max_new_tokens > longest:
            raise RequestTooLong(
                f"{prompt_tokens} prompt tokens and {max_new_tokens} new ones exceed the "
                f"{longest} tokens that a request can have"
            )

    def submit(self, request: SimRequest) -> None:
        """Queue a request behind all earlier ones. Raises RequestTooLong, ValueError if doubled."""
        sequence = Sequence(request)
        if request.request_id in self._sequences:
            raise ValueError(f"request {request.request_id} is here already")
        self.check_fits(sequence.prompt_tokens, sequence.max_new_tokens)
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> Ended | None:
        """Stop a request. Its end is returned if it left now, and comes with the end of the batch
        that it is in otherwise; None also for unknown ids."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        if sequence.stage is not Stage.WAITING and sequence.in_flight:
            sequence.aborting = True
            return None
        return self._leave(sequence, Outcome.ABORTED)

    def close(self, outcome: Outcome) -> list[Ended]:
        """End everything at once, a running batch too; the model can go on being used."""
        for batch in (self._current, self._prepared):
            if batch is not None:
                self._drop(batch)
        self._current = self._prepared = None
        return [self._leave(sequence, outcome) for sequence in list(self._sequences.values())]

    def __len__(self) -> int:
        """Requests that are here, waiting or running."""
        return len(self._sequences)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that hold KV: decoding, or partly prefilled."""
        return len(self._running) + (self._chunked is not None)

    def _waiting_paths(self) -> Iterator[tuple[Atom, ...]]:
        """Paths of the oldest waiting requests; as many as SGLang itself looks at."""
        oldest = islice(self._waiting, _LOOK_AHEAD_REQUESTS)
        return (sequence.request.path for sequence in oldest)

    def flush_cache(self) -> bool:
        """Drop all cached prefixes; False if requests are here."""
        if self._sequences or self._current is not None:
            return False
        self.cache.flush()
        return True

    # Steps

    def step(self) -> StepResult | None:
        """``begin_step`` and ``end_step``; None if there is nothing to do."""
        begun = self.begin_step()
        return None if begun is None else StepResult(begun, self.end_step())

    def begin_step(self) -> Step | None:
        """Start the next batch, None if there is nothing to do. Raises RuntimeError inside a step."""
        if self._current is not None:
            raise RuntimeError("the step before has not ended")
        batch = self._prepared or self._form()
        while batch is not None and all(entry.void for entry in batch.entries):
            self._drop(batch)
            batch = self._form()
        self._current, self._prepared = batch, None
        if batch is None:
            return None
        if self.params.overlap:
            self._prepared = self._form()
        decode_requests = 0 if batch.prefill else len(batch.entries)
        duration_s = self.cost.step_s(batch.new_tokens, decode_requests, batch.context_tokens)
        return Step(duration_s, batch.new_tokens, decode_requests, tuple(batch.admitted))

    def end_step(self) -> StepEnd:
        """Process the results of the batch: insert prefixes, emit tokens, let go what finished."""
        if self._current is None:
            raise RuntimeError("no step has begun")
        batch, self._current = self._current, None
        prefilled: list[str] = []
        tokens: list[str] = []
        ended: list[Ended] = []
        for entry in batch.entries:
            sequence = entry.sequence
            sequence.in_flight -= 1
            if entry.void:
                continue
            sequence.settled = max(sequence.settled, entry.kv_tokens)
            if sequence.aborting:
                ended.append(self._leave(sequence, Outcome.ABORTED))
                continue
            if batch.prefill:
                if entry.kv_tokens < sequence.fill_tokens:
                    continue
                self.pool.share(sequence, entry.kv_tokens)
                if not sequence.prefill_reported:
                    sequence.prefill_reported = True
                    prefilled.append(sequence.id)
            sequence.emitted += 1
            self.output_tokens_total += 1
            tokens.append(sequence.id)
            if sequence.emitted == sequence.output_tokens:
                ended.append(self._leave(sequence, Outcome.FINISHED))
        return StepEnd(tuple(prefilled), tuple(tokens), tuple(ended))

    def _drop(self, batch: Batch) -> None:
        for entry in batch.entries:
            entry.sequence.in_flight -= 1

    def _leave(self, sequence: Sequence, outcome: Outcome) -> Ended:
        """Cache what a running request computed, and take back everything it holds."""
        if sequence.stage is Stage.WAITING:
            self._waiting.remove(sequence)
            self.cache.waits_no_more(sequence.id)
        elif sequence is self._chunked:
            self._chunked = None
        else:
            self._running.remove(sequence)
            if sequence.settled > sequence.in_tree:
                self.pool.share(sequence, sequence.settled)
        self.pool.release(sequence)
        sequence.stage = Stage.DONE
        del self._sequences[sequence.id]
        return Ended(
            sequence.id,
            outcome,
            sequence.prompt_tokens,
            sequence.cached_tokens or 0,
            sequence.emitted,
        )

    # Forming batches

    def _form(self) -> Batch | None:
        self._passes += 1
        if self._refreshes and self._passes % REFRESH_PASSES == 1:
            self._refresh_waiting()
        return self._form_prefill() or self._form_decode()

    def _refresh_waiting(self) -> None:
        """Touch the cached prefixes of waiting requests: those elsewhere are behind those here."""
        for path in self._refreshed() if self._refreshed is not None else ():
            self.cache.match(path)
        for path in reversed(list(self._waiting_paths())):
            self.cache.match(path)

    def _form_prefill(self) -> Batch | None:
        """The unfinished chunk first, then waiting requests from the head, while budgets last.

        All matches and locks come before the batch's allocation, hence before its evictions.
        """
        batch = Batch(prefill=True)
        plan = PrefillPlan(self.params, self._reserved_tokens())
        if self._chunked is not None:
            self._continue_chunk(batch, plan)
        while self._waiting and self._chunked is None and self.running < self.params.max_running:
            if not self._admit_head(batch, plan):
                break
        if not batch.entries:
            return None
        made = self.pool.make_room(plan.pool_tokens)
        assert made, "admission promised more than the pool has"
        for entry in batch.entries:
            self.pool.grow(entry.sequence, entry.kv_tokens)
        return batch

    def _reserved_tokens(self) -> float:
        return self.params.output_reserve * sum(
            min(sequence.remaining_limit, _CLIP_RESERVE) for sequence in self._running
        )

    def _continue_chunk(self, batch: Batch, plan: PrefillPlan) -> None:
        sequence = self._chunked
        assert sequence is not None
        if sequence.aborting:
            return
        # The KV so far goes into the tree before the next chunk is formed, as in SGLang.
        self.pool.share(sequence, sequence.computed)
        left = sequence.fill_tokens - sequence.computed
        tokens = plan.chunk(left, self.pool.available_tokens + sequence.held)
        if tokens:
            if tokens == left:
                self._chunked = None
            self._prefill(batch, plan, sequence, tokens)

    def _admit_head(self, batch: Batch, plan: PrefillPlan) -> bool:
        """Move the head of the queue into the batch; False if it must wait."""
        sequence = self._waiting[0]
        request = sequence.request
        if request.table is not None:
            self.cache.hint(request.table, request.epoch)
        matched = self.cache.match(sequence.path, sequence.fill_tokens - 1)
        self.cache.lock(matched.node)
        sequence.node, sequence.in_tree = matched.node, matched.tokens
        limit = min(sequence.remaining_limit, _CLIP_RESERVE)
        whole = self.pool.ceil(sequence.fill_tokens + limit) - matched.tokens
        new = sequence.fill_tokens - matched.tokens
        room = self.pool.available_tokens - plan.pool_tokens - plan.reserved
        tokens = plan.chunk(new) if whole <= room and plan.takes(new) else 0
        if not tokens:
            self.cache.unlock(matched.node)
            sequence.node, sequence.in_tree = None, 0
            self.cache.waits(sequence.id, (anchor.owner.path_key for anchor in request.anchors))
            return False
        self._waiting.popleft()
        self.cache.waits_no_more(sequence.id)
        sequence.admission += 1
        sequence.computed = sequence.settled = matched.tokens
        if sequence.cached_tokens is None:
            self._count_admission(batch, sequence, matched.tokens)
        if tokens < new:
            self._chunked = sequence
        self._prefill(batch, plan, sequence, tokens)
        plan.reserved += self.params.output_reserve * limit
        return True

    def _count_admission(self, batch: Batch, sequence: Sequence, cached_tokens: int) -> None:
        sequence.cached_tokens = cached_tokens
        self.prompt_tokens_total += sequence.prompt_tokens
        self.cached_tokens_total += cached_tokens
        anchors = sequence.request.anchors
        self.cache.observe_request([a.owner.path_key for a in anchors if a.owner.path_key])
        batch.admitted.append(Admitted(sequence.id, sequence.prompt_tokens, cached_tokens))

    def _prefill(self, batch: Batch, plan: PrefillPlan, sequence: Sequence, tokens: int) -> None:
        sequence.computed += tokens
        plan.spend(tokens, self.pool.need(sequence, sequence.computed))
        batch.new_tokens += tokens
        batch.add(sequence, sequence.computed)
        if sequence is self._chunked:
            sequence.stage = Stage.PREFILLING
        else:
            sequence.stage = Stage.RUNNING
            sequence.launched += 1
            self._running.append(sequence)

    def _form_decode(self) -> Batch | None:
        """One token for every running request; retracts until the pool has room for it."""
        while True:
            members = [s for s in self._running if not s.aborting]
            growing = [s for s in members if not s.all_launched]
            if not growing:
                return None
            if self.pool.make_room(sum(self.pool.need(s, s.computed + 1) for s in growing)):
                break
            if not self._retract(growing):
                return None
        batch = Batch(prefill=False)
        for sequence in members:
            # With overlap a request whose last token is in flight still takes a place in the batch.
            if not sequence.all_launched:
                self.pool.grow(sequence, sequence.computed + 1)
                sequence.computed += 1
                sequence.launched += 1
            batch.context_tokens += sequence.computed
            batch.add(sequence, sequence.computed)
        return batch

    def _retract(self, candidates: list[Sequence]) -> bool:
        """Send back whoever has the least output, then the longest prompt; False if nobody can be.

        Its KV is not inserted (the room is needed now); it waits behind the queue, as in SGLang. The
        last candidate stays: a request that is leaving will make room for it.
        """
        if len(candidates) > 1:
            victim = min(reversed(candidates), key=lambda s: (s.launched, -s.prompt_tokens))
            self._running.remove(victim)
        elif self._chunked is not None and not self._chunked.aborting:
            victim, self._chunked = self._chunked, None
        else:
            return False
        self.pool.release(victim)
        victim.admission += 1
        victim.reset()
        self._waiting.append(victim)
        self.retractions += 1
        return True

    # Looking

    def check_integrity(self) -> None:
        """Raise AssertionError if pool, locks or lists differ from a recount."""
        holders = [*self._running, *([self._chunked] if self._chunked else [])]
        assert self.pool.held_tokens == sum(sequence.held for sequence in holders)
        assert self.pool.free_tokens >= 0
        assert len(holders) <= self.params.max_running
        assert len(self._sequences) == len(holders) + len(self._waiting)
        locks: dict[int, int] = {}
        for sequence in holders:
            assert sequence.node is not None
            assert sequence.node.end == sequence.in_tree
            assert sequence.in_tree + sequence.held >= sequence.computed
            for node in sequence.node.ancestors():
                locks[node.serial] = locks.get(node.serial, 0) + 1
        for sequence in self._waiting:
            assert sequence.node is None
            assert sequence.held == 0
        for node in self.cache.tree:
            assert node.locks == locks.get(node.serial, 0)
        self.cache.check_integrity()
