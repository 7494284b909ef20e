"""The policy ``qas``: the query-aware scheduler of the PRISM paper behind the Scheduler protocol.

Puts the parts together in the order of the paper's round; each part's rule lives in its own module.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from prism_ray.model import DemandTable, Lane, Order, Pick, Ticket
from prism_ray.qas.batch import stand_again
from prism_ray.qas.counters import Ints, Numbers, SegmentCounters
from prism_ray.qas.demand import TableBuilder
from prism_ray.qas.lanes import Lanes
from prism_ray.qas.params import QasParams
from prism_ray.qas.plan import Plan
from prism_ray.qas.priority import Weights
from prism_ray.qas.round import QasRound, Turn
from prism_ray.qas.signature import serialize
from prism_ray.qas.window import Entry, Window
from prism_ray.scheduling import POLICIES, CacheView

IDLE_REPLICAS_MAX = 64
"""Replicas without active requests whose lane position and last dispatches are remembered."""


@dataclass(slots=True, eq=False)
class _Replica:
    """What QAS remembers of one replica: lane position, last dispatches, active segments.

    ``recent`` are the last B_max dispatches, ``older`` those before, as many as ``memory_requests``
    leaves: their segments may still be resident, and keep their ranks. ``recent_counts`` is N over
    ``recent``, ``active`` is A, both by segment number without zeros. ``batch`` is the rest of its
    fixed batch.
    """

    dispatched: int = 0
    cold: int = 0
    tables: int = 0
    running: int = 0
    recent: deque[Numbers] = field(default_factory=deque)
    older: deque[Numbers] = field(default_factory=deque)
    recent_counts: dict[int, int] = field(default_factory=dict)
    active: dict[int, int] = field(default_factory=dict)
    batch: tuple[Pick, ...] = ()


def _add(counts: dict[int, int], numbers: Iterable[int]) -> None:
    for number in numbers:
        counts[number] = counts.get(number, 0) + 1


def _subtract(counts: dict[int, int], numbers: Iterable[int]) -> None:
    """The reverse of ``_add``; entries at zero are deleted."""
    for number in numbers:
        left = counts[number] - 1
        if left:
            counts[number] = left
        else:
            del counts[number]


@POLICIES.register("qas")
class Qas:
    """Query-aware scheduler; see ``QasParams`` for its options and ``scheduling.Scheduler``.

    While a round is open every call that would change the scheduler raises RuntimeError. A request
    put back ``at_head`` goes before all others, so put several back in reverse order.
    """

    retention: ClassVar[str] = "dart"

    def __init__(self, params: Mapping[str, Any] | QasParams | None = None) -> None:
        if not isinstance(params, QasParams):
            params = QasParams.from_mapping(params or {})
        self.params = params
        self._signs_beyond_global = params.signature_segments == "non_global"
        self._counters = SegmentCounters(Weights.of(params))
        self._window = Window(params.window_max)
        self._tables = TableBuilder(self._counters, params.table_rows_max)
        self._active: dict[str, tuple[Entry, str]] = {}
        self._not_running: set[str] = set()
        self._replicas: dict[str, _Replica] = {}
        self._lanes = Lanes(params)
        self._round: QasRound | None = None
        self._plan: Plan | None = None
        self._planned_at = (-1, -1)

    def __len__(self) -> int:
        return len(self._window)

    def add(self, ticket: Ticket, *, at_head: bool = False) -> None:
        self._refuse_in_round()
        request_id = ticket.request_id
        if request_id in self._window or request_id in self._active:
            raise ValueError(f"request {request_id!r} is already here")
        entry = Entry(ticket, *self._counters.enqueue(ticket.skeleton.segments))
        if self._signs_beyond_global and (shared := ticket.skeleton.global_slots):
            self._counters.mark_global(entry.slots[:shared])
        if self.params.realign == "arrival":
            self._counters.flush()
            entry.order = serialize(entry, self._counters, self.params)
        self._window.add(entry, at_head=at_head)

    def cancel(self, request_id: str) -> bool:
        self._refuse_in_round()
        entry = self._window.remove(request_id)
        if entry is None:
            return False
        self._counters.dequeue(entry.numbers)
        return True

    def finish(self, request_id: str) -> bool:
        self._refuse_in_round()
        if request_id not in self._active:
            return False
        entry, replica_name = self._active.pop(request_id)
        replica = self._replicas[replica_name]
        replica.running -= 1
        if request_id in self._not_running:
            self._not_running.remove(request_id)
            self._counters.dequeue(entry.numbers)
        else:
            _subtract(replica.active, entry.numbers)
            self._counters.finish(entry.numbers)
        return True

    def runs(self, request_id: str) -> None:
        """See ``scheduling.Watching``."""
        self._refuse_in_round()
        if request_id in self._not_running:
            self._not_running.remove(request_id)
            entry, replica = self._active[request_id]
            self._counters.send(entry.numbers)
            _add(self._replicas[replica].active, entry.numbers)

    def open_round(
        self, caches: Mapping[str, CacheView], homes: Mapping[str, str] | None = None
    ) -> QasRound:
        self._refuse_in_round()
        plan = self._current_plan()
        first = {replica: self._lanes.first(self._dispatched(replica)) for replica in caches}
        batches = None
        if self.params.batch == "fixed":
            batches = {r: stand_again(self._batch(r), r, self._window, homes) for r in caches}
        self._round = QasRound(
            plan, self._lanes, first, caches, self.params, self._commit, homes, batches
        )
        return self._round

    def order_of(self, request_id: str) -> Order | None:
        """See ``scheduling.Serializing``."""
        entry = self._window.get(request_id)
        if entry is None:
            return None
        self._counters.flush()
        return serialize(entry, self._counters, self.params)

    def waiting(self) -> Iterator[Ticket]:
        return (entry.ticket for entry in self._window)

    def _refuse_in_round(self) -> None:
        if self._round is not None:
            raise RuntimeError("a round is open: close it first")

    def _dispatched(self, replica: str) -> int:
        known = self._replicas.get(replica)
        return known.dispatched if known else 0

    def _batch(self, replica: str) -> tuple[Pick, ...]:
        known = self._replicas.get(replica)
        return known.batch if known else ()

    def _current_plan(self) -> Plan:
        """The plan of this moment; the last one while nothing it depends on has changed."""
        self._counters.flush()
        self._window.refresh()
        moment = (self._counters.flushes, self._window.version)
        if self._plan is None or moment != self._planned_at:
            self._plan = Plan(self._window, self._counters, self.params)
            self._planned_at = moment
        return self._plan

    def _commit(self, round_: QasRound, turns: Mapping[str, Turn]) -> Mapping[str, DemandTable]:
        """End of a round: tables are taken while the batch still counts as queued (A18)."""
        self._round = None
        if not turns:
            return {}
        self._forget_idle_replicas(turns)
        plan = round_.plan
        planned = {
            replica: plan.numbers[:, turn.columns + round_.predicted(turn)]
            if self.params.predict_next
            else plan.numbers[:, turn.columns]
            for replica, turn in turns.items()
        }
        others = plan.segments()
        batches = {r: [plan.entry(column) for column in turns[r].columns] for r in turns}
        for replica, turn in turns.items():
            self._remember(replica, turn, batches[replica])
            self._replicas[replica].batch = round_.rest_of_batch(turn)
        if self.params.table_taken == "after":
            self._move(batches)
            self._counters.flush()
        tables = {
            replica: self._table(replica, planned[replica], len(turn.columns), others)
            for replica, turn in turns.items()
        }
        if self.params.table_taken == "before":
            self._move(batches)
        return tables

    def _remember(self, name: str, turn: Turn, batch: list[Entry]) -> None:
        """Count the dispatches and make them the newest of the replica's last B_max."""
        replica = self._replicas[name]
        replica.dispatched += len(batch)
        replica.cold += turn.lanes.count(Lane.COLD)
        numbers = [number for entry in batch for number in entry.numbers]
        self._counters.keep(numbers)
        _add(replica.recent_counts, numbers)
        replica.recent.extend(entry.numbers for entry in batch)
        leaving = max(0, len(replica.recent) - self.params.batch_max)
        aging = [replica.recent.popleft() for _ in range(leaving)]
        _subtract(replica.recent_counts, chain.from_iterable(aging))
        replica.older.extend(aging)
        older_max = max(0, self.params.memory_requests - self.params.batch_max)
        while len(replica.older) > older_max:
            self._counters.release(replica.older.popleft())

    def _table(self, name: str, planned: Ints, sent: int, window: Ints) -> DemandTable:
        replica = self._replicas[name]
        replica.tables += 1
        rows = self._tables.rows(replica.active, replica.recent_counts, planned, sent, window)
        return DemandTable(replica.tables, rows)

    def _move(self, batches: Mapping[str, list[Entry]]) -> None:
        """From queued to active: G -= 1, A += 1, unless only what runs is active (A12)."""
        for name, batch in batches.items():
            replica = self._replicas[name]
            replica.running += len(batch)
            for entry in batch:
                self._window.remove(entry.ticket.request_id)
                self._active[entry.ticket.request_id] = entry, name
            if self.params.active == "running":
                self._not_running.update(entry.ticket.request_id for entry in batch)
                continue
            numbers = [number for entry in batch for number in entry.numbers]
            self._counters.send(numbers)
            _add(replica.active, numbers)

    def _forget_idle_replicas(self, turns: Mapping[str, Turn]) -> None:
        """Replicas come and go for ever: drop those longest without a dispatch."""
        for name in turns:
            self._replicas[name] = self._replicas.pop(name, _Replica())
        if len(self._replicas) <= IDLE_REPLICAS_MAX:
            return
        idle = [n for n, r in self._replicas.items() if not r.running and n not in turns]
        for name in idle[: max(0, len(idle) - IDLE_REPLICAS_MAX)]:
            self.forget(name)

    def forget(self, replica: str) -> None:
        self._refuse_in_round()
        known = self._replicas.get(replica)
        if known is None:
            return
        if known.running:
            raise ValueError(f"replica {replica!r} still has {known.running} active requests")
        del self._replicas[replica]
        for numbers in chain(known.recent, known.older):
            self._counters.release(numbers)

    def describe(self, top: int = 20) -> dict[str, Any]:
        """See ``Scheduler.describe``. Keys: policy, queued, active, segments (hottest first: segment,
        label, active, queued, next, priority), buckets (best first: signature, score, size) and
        lanes (per replica: dispatched, cold, hot, active)."""
        plan = self._current_plan()
        return {
            "policy": "qas",
            "queued": len(self._window),
            "active": len(self._active),
            "segments": self._describe_segments(top),
            "buckets": plan.describe(top),
            "lanes": {
                name: {
                    "dispatched": replica.dispatched,
                    "cold": replica.cold,
                    "hot": replica.dispatched - replica.cold,
                    "active": replica.running,
                }
                for name, replica in self._replicas.items()
            },
        }

    def _describe_segments(self, top: int) -> list[dict[str, Any]]:
        """N is over the last B_max dispatches of every replica; candidates by P(r; ∅) or N."""
        counters = self._counters
        recent: Counter[int] = Counter()
        for replica in self._replicas.values():
            recent.update(replica.recent_counts)
        found = set(recent) | set(counters.hottest(top))
        rows = []
        for number in found:
            active, queued = counters.counts(number)
            next_ = recent[number]
            priority = counters.weights.priority(active, next_, queued)
            rows.append((-priority, number, active, queued, next_))
        return [
            {
                "segment": counters.ids[number].hex(),
                "label": counters.labels[number],
                "active": active,
                "queued": queued,
                "next": next_,
                "priority": -negative,
            }
            for negative, number, active, queued, next_ in sorted(rows)[:top]
        ]

    def check_integrity(self) -> None:
        self._window.check_integrity()
        replicas = self._replicas
        assert self._not_running <= self._active.keys()
        unstarted = [self._active[request_id][0].numbers for request_id in self._not_running]
        started = {r: at for r, at in self._active.items() if r not in self._not_running}
        self._counters.check_integrity(
            queued=[*(entry.numbers for entry in self._window), *unstarted],
            active=[entry.numbers for entry, _ in started.values()],
            kept=[n for replica in replicas.values() for n in (*replica.recent, *replica.older)],
        )
        for name, replica in replicas.items():
            mine = [entry.numbers for entry, at in started.values() if at == name]
            assert replica.running == sum(at == name for _, at in self._active.values())
            assert replica.active == Counter(chain.from_iterable(mine)), "A of a replica differs"
            assert replica.recent_counts == Counter(chain.from_iterable(replica.recent))
            assert len(replica.recent) <= self.params.batch_max
        assert not self._active.keys() & {t.request_id for t in self.waiting()}
