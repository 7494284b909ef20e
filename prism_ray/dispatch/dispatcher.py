"""Rounds: which waiting request goes to which replica now, and the books of all that went.

Pure: time comes in as an argument and plans go out as values. Whoever drives it (the Serve actor, the
simulator) carries the messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Any

from prism_ray.dispatch.company import Company
from prism_ray.dispatch.homes import Homes
from prism_ray.dispatch.journal import Journal
from prism_ray.dispatch.open_seats import OpenSeats
from prism_ray.dispatch.plans import Dispatch, Given, write_plan
from prism_ray.dispatch.seat import Seat, Sent
from prism_ray.model import (
    Atom,
    Completion,
    DemandTable,
    InFlight,
    Outcome,
    Pick,
    ReplicaCapacity,
    ReplicaSnapshot,
    Ticket,
)
from prism_ray.placement import Homing, Pacing, Placement, ReplicaLoad, Turns
from prism_ray.scheduling import Round, Scheduler, SharedRound, Watching


class Place(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    SENT = "sent"
    UNKNOWN = "unknown"


class Dispatcher:
    """One window over many replicas.

    With a placement of turns, replicas with credit are offered the whole window in turn. With one
    that gives homes, each is offered only what is at home there, those with most credit first.

    Every ticket that enters leaves once: as a Completion, a cancellation, or a ticket handed back by
    ``leave``. ``check_integrity`` recounts everything.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        placement: Placement,
        epoch: str,
        round_interval_s: float = 0.020,
    ) -> None:
        self.scheduler = scheduler
        self.placement = placement
        self.epoch = epoch
        self.round_interval_s = round_interval_s
        self.seats: dict[str, Seat] = {}
        self._open = OpenSeats()
        self._waiting: dict[str, Ticket] = {}
        self._company = Company()
        self._watching = scheduler if isinstance(scheduler, Watching) else None
        self._pacing = placement if isinstance(placement, Pacing) else None
        self._slots: int | None = None
        self._turns: Turns | None = None
        self._homes: Homes | None = None
        if isinstance(placement, Homing):
            self._homes = Homes(placement, scheduler)
        else:
            self._turns = placement
        self._journal = Journal()
        self._now_s = float("-inf")
        self._sent: dict[str, str] = {}
        self._last_round_s = float("-inf")
        self.rounds = 0
        self.dispatched: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def sent_count(self) -> int:
        return len(self._sent)

    def place_of(self, request_id: str) -> Place:
        if request_id in self._waiting:
            return Place.WAITING
        return Place.SENT if request_id in self._sent else Place.UNKNOWN

    def replica_of(self, request_id: str) -> str | None:
        return self._sent.get(request_id)

    def queued_tokens(self, replica: str) -> int:
        """Prompt tokens that wait for a replica: what is at home there, and its part of the rest.

        What is at home on a draining replica counts as the rest: the next round moves it.
        """
        draining = self._open.draining
        if replica not in self.seats or replica in draining:
            return 0
        takers = len(self.seats) - len(draining)
        if self._homes is None:
            return self._company.waiting_tokens // takers
        moving = sum(map(self._homes.tokens_at, draining))
        shared = self._company.waiting_tokens - self._homes.placed_tokens + moving
        return self._homes.tokens_at(replica) + shared // takers

    # -- requests -------------------------------------------------------------------------------

    def submit(self, ticket: Ticket, *, at_head: bool = False) -> None:
        """Let a ticket wait. A newer attempt replaces an older one of the same request.

        Raises ValueError for an attempt that is not newer than what is known of the request.
        """
        known = self._known_attempt(ticket.request_id)
        if known is not None:
            if ticket.attempt <= known:
                raise ValueError(f"attempt {ticket.attempt} of {ticket.request_id} is not new")
            self.cancel(ticket.request_id)
        self.scheduler.add(ticket, at_head=at_head)
        self._waiting[ticket.request_id] = ticket
        self._company.arrive(ticket)
        if self._homes is not None:
            self._homes.arrive(ticket)

    def cancel(self, request_id: str) -> Place:
        """Forget a request wherever it is; says where it was.

        For a sent one the counters and the credit return now: the caller still has to tell the
        replica, whose own snapshots then list it (as foreign) until it is really gone.
        """
        if request_id in self._waiting:
            self.scheduler.cancel(request_id)
            self._stop_waiting(request_id)
            if self._homes is not None:
                self._homes.withdraw(request_id, self._now_s)
            return Place.WAITING
        replica = self._sent.get(request_id)
        if replica is None:
            return Place.UNKNOWN
        self._take_back(
            self.seats[replica], request_id, self.seats[replica].sent[request_id].ticket.attempt
        )
        return Place.SENT

    def expired(self, now_s: float) -> list[Ticket]:
        """Take out of the window every ticket whose deadline has passed."""
        late = [
            t for t in self._waiting.values() if t.deadline_s is not None and t.deadline_s <= now_s
        ]
        for ticket in late:
            self.cancel(ticket.request_id)
        return late

    # -- replicas -------------------------------------------------------------------------------

    def join(
        self,
        replica: str,
        incarnation: str,
        capacity: ReplicaCapacity,
        now_s: float | None = None,
    ) -> list[Ticket]:
        """A replica can take work. Returns the tickets lost with its former incarnation, if any.

        ``now_s`` here and below: the time, if the caller has it; else that of the last call with one.
        """
        old = self.seats.get(replica)
        lost = self.leave(replica) if old is not None and old.incarnation != incarnation else []
        if replica not in self.seats:
            seat = self.seats[replica] = Seat(replica, incarnation, capacity, self._open.note)
            seat.pace(self._slots)
            self.dispatched.setdefault(replica, 0)
            if self._homes is not None:
                self._homes.join(seat, self._time(now_s))
        return lost

    def leave(self, replica: str) -> list[Ticket]:
        """A replica is gone; hands back the tickets that were sent to it, in dispatch order."""
        seat = self.seats.pop(replica, None)
        if seat is None:
            return []
        self._open.forget(replica)
        self.dispatched.pop(replica, None)
        lost = [sent.ticket for sent in seat.sent.values()]
        if self._homes is not None:
            self._homes.leave(replica)
        for ticket in lost:
            del self._sent[ticket.request_id]
            self.scheduler.finish(ticket.request_id)
        self.scheduler.forget(replica)
        return lost

    def prefill_ended(
        self, replica: str, request_id: str, attempt: int, now_s: float | None = None
    ) -> bool:
        seat = self.seats.get(replica)
        if seat is None or not seat.prefill_ended(request_id, attempt):
            return False
        if self._watching is not None:
            self._watching.runs(request_id)
        if self._homes is not None:
            self._homes.placement.prefilled(request_id, self._time(now_s))
        return True

    def completed(self, replica: str, completion: Completion, now_s: float | None = None) -> bool:
        """The replica holds nothing of the request any more; False if that was known or is foreign."""
        seat = self.seats.get(replica)
        if seat is None:
            return False
        self._time(now_s)
        output_tokens = completion.output_tokens if completion.outcome is Outcome.FINISHED else None
        sent = self._take_back(seat, completion.request_id, completion.attempt, output_tokens)
        return sent is not None

    def flushed(self, replica: str) -> None:
        """The replica's prefix cache was emptied: nothing but what is in flight is there."""
        seat = self.seats.get(replica)
        if seat is None:
            return
        seat.residency.clear()
        if not seat.sent:
            self.scheduler.forget(replica)
        if self._homes is not None:
            self._homes.placement.flushed(replica)

    def explain(self, request_id: str, now_s: float) -> dict[str, Any] | None:
        """Why a request went where it went (``Journal.explain``); None if that is not known."""
        return self._journal.explain(request_id, now_s)

    def last_decisions(self, count: int, now_s: float) -> list[dict[str, Any]]:
        """The newest decisions with their reasons (``Journal.last``), newest first."""
        return self._journal.last(count, now_s)

    def refused(self, replica: str, request_id: str, attempt: int) -> Ticket | None:
        """The replica did not take a planned request: all it occupied returns; the caller re-submits."""
        seat = self.seats.get(replica)
        sent = None if seat is None else self._take_back(seat, request_id, attempt)
        return None if sent is None else sent.ticket

    def snapshot(self, snapshot: ReplicaSnapshot, plan_version: int) -> list[Ticket]:
        """Correct a seat by its replica's absolute numbers.

        ``plan_version`` is the last plan of this epoch that the replica had read when it took the
        snapshot. What was sent by then and is not in the snapshot is gone: those tickets are returned.
        What the snapshot holds and this epoch did not send counts against credit as foreign.
        """
        seat = self.seats.get(snapshot.replica)
        if seat is None or seat.incarnation != snapshot.incarnation:
            return []
        seat.snapshot = snapshot
        held = {(h.request_id, h.attempt) for h in snapshot.in_flight}
        gone = [
            sent.ticket
            for sent in seat.sent.values()
            if sent.plan_version <= plan_version
            and (sent.ticket.request_id, sent.ticket.attempt) not in held
        ]
        for ticket in gone:
            self._take_back(seat, ticket.request_id, ticket.attempt)
        self._count_foreign(seat, snapshot.in_flight)
        return gone

    # -- rounds ---------------------------------------------------------------------------------

    def next_round_s(self, now_s: float) -> float | None:
        """When the next round is due: None while nothing waits or no replica is open (A5)."""
        if not self._waiting or not self._open:
            return None
        if self._open.any_idle:
            return now_s
        return max(now_s, self._last_round_s + self.round_interval_s)

    def round(self, now_s: float) -> list[Dispatch]:
        """Dispatch what credit admits now."""
        self._now_s = max(self._now_s, now_s)
        if not self._waiting:
            return []
        if self._homes is not None:
            names = self._homes.settle(self.seats, self._open, now_s)
        else:
            names = self._open.names()
        if not names:
            return []
        open_seats = {name: self.seats[name] for name in names}
        self._last_round_s = now_s
        self.rounds += 1
        caches = {name: seat.residency for name, seat in open_seats.items()}
        if self._homes is not None:
            scheduling_round = self.scheduler.open_round(caches, self._homes.homes)
            picked = self._fill_homes(scheduling_round, open_seats, self._homes)
        else:
            scheduling_round = self.scheduler.open_round(caches)
            picked = self._fill_turns(scheduling_round, open_seats)
        tables = scheduling_round.close()
        return [
            self._write_plan(self.seats[name], picks, tables.get(name, DemandTable(0)), now_s)
            for name, picks in picked.items()
        ]

    def _fill_turns(
        self, scheduling_round: Round, open_seats: dict[str, Seat]
    ) -> dict[str, list[Given]]:
        assert self._turns is not None
        picked: dict[str, list[Given]] = {}
        while open_seats:
            choice = self._turns.choose([self._load(seat) for seat in open_seats.values()])
            name = choice.replica
            seat = open_seats[name]
            given = self._give(scheduling_round, seat)
            if given is None:
                del open_seats[name]
                continue
            picked.setdefault(name, []).append(Given(*given, choice))
            self._turns.took(name)
            if not seat.open:
                del open_seats[name]
        return picked

    def _fill_homes(
        self, scheduling_round: Round, open_seats: dict[str, Seat], homes: Homes
    ) -> dict[str, list[Given]]:
        """Most credit first, dispatch by dispatch: tenants' turns are shared by all replicas."""
        picked: dict[str, list[Given]] = {}
        most_first = [(-seat.credit_tokens, name) for name, seat in open_seats.items()]
        heapify(most_first)
        while most_first:
            _, name = heappop(most_first)
            seat = open_seats[name]
            given = self._give(scheduling_round, seat)
            if given is None:
                continue
            pick, sent = given
            ticket = pick.ticket
            cached = ticket.skeleton.prompt_tokens - sent.uncached_tokens
            path = ticket.skeleton.path(pick.order)
            choice = homes.sent(ticket.request_id, path, cached, self._now_s)
            picked.setdefault(name, []).append(Given(pick, sent, choice))
            if seat.open:
                heappush(most_first, (-seat.credit_tokens, name))
        return picked

    def _give(self, scheduling_round: Round, seat: Seat) -> tuple[Pick, Sent] | None:
        """Dispatch what the policy offers to a replica with credit; None if nothing can go there."""
        name = seat.replica
        while True:
            pick = scheduling_round.peek(name)
            path = pick.ticket.skeleton.path(pick.order) if pick else ()
            if pick is None or not seat.fits(pick.ticket, path):
                return None
            if not self._stays_back(seat, pick.ticket, path):
                break
            if not (isinstance(scheduling_round, SharedRound) and scheduling_round.pass_over(name)):
                return None
        scheduling_round.take(name, pick)
        self._stop_waiting(pick.ticket.request_id)
        guest = self._company.leaves_others(pick.ticket.tenant)
        sent = seat.send(pick.ticket, pick.order, guest=guest)
        self.dispatched[name] += 1
        self._sent[pick.ticket.request_id] = name
        return pick, sent

    def _stays_back(self, seat: Seat, ticket: Ticket, path: tuple[Atom, ...]) -> bool:
        """Whether the request gives way to tenants that have little; a tenant alone never does."""
        tenants = len(self._company)
        if tenants == 1:
            return False
        if seat.keeps_room(ticket.tenant, tenants):
            return True
        return self._company.has_backlog(ticket.tenant) and seat.gives_way(ticket, path)

    def _write_plan(
        self, seat: Seat, given: list[Given], table: DemandTable, now_s: float
    ) -> Dispatch:
        dispatch = write_plan(seat, given, table, self.epoch, now_s)
        for decision, (_, _, choice) in zip(dispatch.decisions, given, strict=True):
            self._journal.write(decision, choice, now_s)
        return dispatch

    # -- books ----------------------------------------------------------------------------------

    def _load(self, seat: Seat) -> ReplicaLoad:
        running = len(seat.sent) + seat.foreign_requests
        return ReplicaLoad(seat.replica, seat.load_tokens, running, self.dispatched[seat.replica])

    def _stop_waiting(self, request_id: str) -> None:
        self._company.leave(self._waiting.pop(request_id))

    def _known_attempt(self, request_id: str) -> int | None:
        ticket = self._waiting.get(request_id)
        if ticket is None and request_id in self._sent:
            ticket = self.seats[self._sent[request_id]].sent[request_id].ticket
        return None if ticket is None else ticket.attempt

    def _take_back(
        self, seat: Seat, request_id: str, attempt: int, output_tokens: int | None = None
    ) -> Sent | None:
        sent = seat.release(request_id, attempt)
        if sent is not None:
            del self._sent[request_id]
            self.scheduler.finish(request_id)
            if self._homes is not None:
                self._homes.placement.released(request_id, output_tokens, self._now_s)
                self._keep_pace()
        return sent

    def _keep_pace(self) -> None:
        if self._pacing is None or self._pacing.slots == self._slots:
            return
        self._slots = self._pacing.slots
        for seat in self.seats.values():
            seat.pace(self._slots)

    def _time(self, now_s: float | None) -> float:
        if now_s is not None:
            self._now_s = max(self._now_s, now_s)
        return self._now_s

    def _count_foreign(self, seat: Seat, in_flight: Iterable[InFlight]) -> None:
        own = {(sent.ticket.request_id, sent.ticket.attempt) for sent in seat.sent.values()}
        foreign = [h for h in in_flight if (h.request_id, h.attempt) not in own]
        tokens = sum(h.uncached_tokens for h in foreign if not h.prefilled)
        seat.count_foreign(len(foreign), tokens)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every book agrees with every other."""
        self.scheduler.check_integrity()
        assert set(self._waiting) == {t.request_id for t in self.scheduler.waiting()}
        assert not set(self._waiting) & set(self._sent)
        self._company.check_integrity(Counter(t.tenant for t in self._waiting.values()))
        prompts = sum(t.skeleton.prompt_tokens for t in self._waiting.values())
        assert self._company.waiting_tokens == prompts
        if any(not seat.draining for seat in self.seats.values()):
            assert 0 <= prompts - sum(map(self.queued_tokens, self.seats)) < len(self.seats)
        by_seat = {r: name for name, seat in self.seats.items() for r in seat.sent}
        assert by_seat == self._sent
        if self._homes is not None:
            self._homes.check_integrity(set(self._waiting), self._sent)
        self._open.check_integrity(self.seats.values())
        for seat in self.seats.values():
            seat.check_integrity()
