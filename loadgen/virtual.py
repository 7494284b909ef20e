"""The application in virtual time: the real dispatcher and step-model engines on an event clock.

No HTTP, no Ray, no processes: what is left is what scheduling, credit and the engine's batches do to
a request. Messages take no time unless they are told to (``Delays``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import NamedTuple

from prism_ray.cache_news import CacheNews
from prism_ray.dart import Anchor, Future, skeleton_anchors, uses_anchors
from prism_ray.dispatch import Dispatch, Dispatcher
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.engine.sequence import SimRequest
from prism_ray.engine.step_model import StepModel
from prism_ray.model import Atom, Completion, DemandTable, Order, ReplicaCapacity, Ticket
from prism_ray.scheduling import Refreshing


class Arrival(NamedTuple):
    """A request that comes at ``ticket.arrival_s`` and will generate ``output_tokens`` (at least one).

    ``private`` and ``output`` name the tokens after the last segment and the generated ones, where
    other requests have them too; empty: nobody has.
    """

    ticket: Ticket
    output_tokens: int
    private: tuple[Atom, ...] = ()
    output: tuple[Atom, ...] = ()


class Delays(NamedTuple):
    """How long messages take, in seconds: a plan to its replica, a replica's event to the dispatcher."""

    plan_s: float = 0.0
    credit_s: float = 0.0


@dataclass(slots=True)
class Served:
    """What became of a request; times are seconds of the event clock, None for what never happened.

    ``admitted_s`` is the start of its first prefill batch, ``last_chunk_s`` of the batch that ended
    its prefill; ``path`` is the prompt as it was written.
    """

    ticket: Ticket
    replica: str = ""
    order: Order = ()
    path: tuple[Atom, ...] = ()
    output: tuple[Atom, ...] = ()
    decided_s: float | None = None
    admitted_s: float | None = None
    last_chunk_s: float | None = None
    prefilled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Time to first token, from arrival; infinite while there is none."""
        return float("inf") if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def arrival_s(self) -> float:
        return self.ticket.arrival_s


@dataclass(slots=True)
class _Engine:
    model: StepModel
    ledger: CacheLedger | None
    busy: bool = False
    begun_s: float = 0.0


class VirtualCluster:
    """A dispatcher over step-model engines. ``run`` once; ``served`` has every request by id."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        params: StepParams,
        cost: CostModel,
        *,
        replicas: int = 1,
        max_running: int = 64,
        delays: Delays | None = None,
        tells_cache: bool = True,
        futures: Mapping[str, Future] | None = None,
    ) -> None:
        """``tells_cache``: the engines say what their caches hold; else the dispatcher predicts it.

        ``futures`` by replica are what retention ``belady`` must know.
        """
        self.dispatcher = dispatcher
        self.served: dict[str, Served] = {}
        self.now_s = 0.0
        self.delays = delays or Delays()
        chunk = params.chunked_prefill_tokens or params.max_prefill_tokens
        self.capacity = ReplicaCapacity(
            params.pool_tokens,
            max_running,
            2 * chunk,
            tells_cache=tells_cache and uses_anchors(params.retention),
        )
        self.engines = {
            name: self._engine(params, cost, (futures or {}).get(name))
            for name in (f"replica-{n}" for n in range(replicas))
        }
        for name in self.engines:
            dispatcher.join(name, "first", self.capacity, self.now_s)
        self._arrivals: dict[str, Arrival] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._wake_s: float | None = None
        self._places = {name: place for place, name in enumerate(self.engines)}
        self._stirred: set[str] = set()

    def _engine(self, params: StepParams, cost: CostModel, future: Future | None) -> _Engine:
        policy = self.dispatcher.scheduler
        refreshed = policy.refresh_paths if isinstance(policy, Refreshing) else None
        ledger = None
        if self.capacity.tells_cache:
            ledger = CacheLedger()
        model = StepModel(params, cost, refreshed=refreshed, observer=ledger, future=future)
        return _Engine(model, ledger)

    def run(self, arrivals: Iterable[Arrival]) -> dict[str, Served]:
        """Serve all arrivals to their end."""
        for arrival in arrivals:
            self._at(arrival.ticket.arrival_s, partial(self._arrive, arrival))
        while self._events:
            self.now_s = self._events[0][0]
            while self._events and self._events[0][0] == self.now_s:
                heapq.heappop(self._events)[2]()
            self._rounds()
            # Only these can have something to do that they had not before; in the engines' order.
            for name in sorted(self._stirred, key=self._places.__getitem__):
                if not self.engines[name].busy:
                    self._begin_step(name, self.engines[name])
            self._stirred.clear()
        assert not len(self.dispatcher), "requests wait and nothing will happen any more"
        return self.served

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), happen))

    def _later(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Now, where messages take no time."""
        if delay_s > 0:
            self._at(self.now_s + delay_s, happen)
        else:
            happen()

    def _arrive(self, arrival: Arrival) -> None:
        ticket = arrival.ticket
        self.served[ticket.request_id] = Served(ticket)
        self._arrivals[ticket.request_id] = arrival
        self.dispatcher.submit(ticket)

    # Deciding

    def _rounds(self) -> None:
        """Rounds that are due; one that dispatched nothing is not repeated before something happens."""
        due_s = self.dispatcher.next_round_s(self.now_s)
        dispatched = True
        while dispatched and due_s is not None and due_s <= self.now_s:
            dispatches = self.dispatcher.round(self.now_s)
            for dispatch in dispatches:
                self._decide(dispatch)
            dispatched = bool(dispatches)
            due_s = self.dispatcher.next_round_s(self.now_s)
        if due_s is not None and due_s > self.now_s and self._wake_s is None:
            self._wake_s = due_s
            self._at(due_s, self._wake)

    def _wake(self) -> None:
        self._wake_s = None

    def _decide(self, dispatch: Dispatch) -> None:
        for decision in dispatch.decisions:
            served = self.served[decision.request_id]
            served.replica, served.order = decision.replica, decision.order
            served.decided_s = self.now_s
        self._later(self.delays.plan_s, partial(self._submit, dispatch))

    def _submit(self, dispatch: Dispatch) -> None:
        """Bring a plan to its replica; its demand table travels with its first request."""
        table: DemandTable | None = dispatch.plan.demand
        model = self.engines[dispatch.plan.replica].model
        self._stirred.add(dispatch.plan.replica)
        for decision in dispatch.decisions:
            served = self.served[decision.request_id]
            model.submit(self._request(served, table, dispatch.plan.epoch))
            table = None

    def _request(self, served: Served, table: DemandTable | None, epoch: str) -> SimRequest:
        ticket = served.ticket
        arrival = self._arrivals.pop(ticket.request_id)
        served.path = _prompt(arrival, served.order)
        served.output = arrival.output or (
            Atom(b"output of " + ticket.request_id.encode(), max(1, arrival.output_tokens)),
        )
        return SimRequest(
            ticket.request_id,
            served.path,
            served.output,
            anchors_of(ticket, served.order),
            max_new_tokens=ticket.max_new_tokens or None,
            table=table,
            epoch=epoch,
        )

    # Computing

    def _begin_step(self, name: str, engine: _Engine) -> None:
        begun = engine.model.begin_step()
        if begun is None:
            return
        engine.busy = True
        engine.begun_s = self.now_s
        for admitted in begun.admitted:
            served = self.served[admitted.request_id]
            served.cached_tokens = admitted.cached_tokens
            served.admitted_s = self.now_s
        self._at(self.now_s + begun.duration_s, partial(self._end_step, name))

    def _end_step(self, name: str) -> None:
        engine = self.engines[name]
        engine.busy = False
        self._stirred.add(name)
        end = engine.model.end_step()
        for request_id in end.prefilled:
            served = self.served[request_id]
            served.last_chunk_s, served.prefilled_s = engine.begun_s, self.now_s
        for request_id in end.tokens:
            served = self.served[request_id]
            if served.first_token_s is None:
                served.first_token_s = self.now_s
        for ended in end.ended:
            self.served[ended.request_id].finished_s = self.now_s
        completions = [
            Completion(e.request_id, 0, e.outcome, output_tokens=self._output_tokens(e.request_id))
            for e in end.ended
        ]
        news = engine.ledger.take() if engine.ledger is not None else []
        if news or end.prefilled or completions:
            report = partial(self._report, name, news, end.prefilled, completions)
            self._later(self.delays.credit_s, report)

    def _report(
        self,
        name: str,
        news: list[CacheNews],
        prefilled: Iterable[str],
        completions: list[Completion],
    ) -> None:
        for message in news:
            self.dispatcher.seats[name].cache_news(message)
        for request_id in prefilled:
            self.dispatcher.prefill_ended(name, request_id, 0, self.now_s)
        for completion in completions:
            self.dispatcher.completed(name, completion, self.now_s)

    def _output_tokens(self, request_id: str) -> int:
        return sum(atom.tokens for atom in self.served[request_id].output)


def _prompt(arrival: Arrival, order: Order) -> tuple[Atom, ...]:
    ticket = arrival.ticket
    path = ticket.skeleton.path(order)
    if arrival.private:
        return (*path, *arrival.private)
    if not ticket.skeleton.private_tokens:
        return path
    name = b"private of " + ticket.request_id.encode()
    return (*path, Atom(name, ticket.skeleton.private_tokens))


def anchors_of(ticket: Ticket, order: Order) -> tuple[Anchor, ...]:
    """Who owns the prompt's tokens up to each segment's end; the rest is the engine's to name."""
    return skeleton_anchors(ticket.skeleton, order)[:-1]
