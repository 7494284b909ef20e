"""One round of QAS: the frozen plan, and who was given what from it.

Moves no counter: the policy commits a round when it closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prism_ray.model import DemandTable, Lane, Pick
from prism_ray.qas.batch import Batch
from prism_ray.qas.lanes import Lanes
from prism_ray.qas.params import QasParams
from prism_ray.qas.pioneer import Pioneers
from prism_ray.qas.plan import Plan
from prism_ray.scheduling import CacheView


class Lines:
    """The plan's two lane orders, whole, and how far each was taken from the front."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.start = {Lane.HOT: 0, Lane.COLD: 0}

    def columns(self, lane: Lane, count: int) -> Sequence[int]:
        """At least the first ``count`` columns of a lane's order, or all."""
        return self._plan.columns(lane, count)


class Homes:
    """The lane orders dealt out to the replicas whose requests they are, as far as was asked for.

    Each order is read once in a round, whatever the number of replicas.
    """

    def __init__(self, plan: Plan, homes: Mapping[str, str], replicas: Iterable[str]) -> None:
        self._plan = plan
        self._homes = homes
        self._read = dict.fromkeys(Lane, 0)
        self._dealt: dict[Lane, dict[str, list[int]]] = {
            lane: {replica: [] for replica in replicas} for lane in Lane
        }

    def columns(self, replica: str, lane: Lane, count: int) -> Sequence[int]:
        """At least the first ``count`` columns of the lane's order that are at home there, or all."""
        dealt = self._dealt[lane]
        own = dealt[replica]
        read = self._read[lane]
        while len(own) < count:
            order = self._plan.columns(lane, read + 1)
            if read >= len(order):
                break
            column = order[read]
            read += 1
            home = self._homes.get(self._plan.entry(column).ticket.request_id)
            if home in dealt:
                dealt[home].append(column)
        self._read[lane] = read
        return own


class OwnLines(Lines):
    """The lane orders of one replica: only what is at home there."""

    def __init__(self, plan: Plan, homes: Homes, replica: str) -> None:
        super().__init__(plan)
        self._homes = homes
        self._replica = replica

    def columns(self, lane: Lane, count: int) -> Sequence[int]:
        return self._homes.columns(self._replica, lane, count)


@dataclass(slots=True)
class Turn:
    """What one replica got in this round; ``first`` is the lane number of its first dispatch.

    ``batch`` is what it draws from if batches are fixed.
    """

    first: int
    pioneers: Pioneers | None
    lines: Lines
    batch: Batch | None = None
    columns: list[int] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    offer: tuple[int, Pick] | None = None
    held: set[int] = field(default_factory=set)

    @property
    def next_number(self) -> int:
        return self.first + len(self.columns)


Commit = Callable[["QasRound", Mapping[str, Turn]], Mapping[str, DemandTable]]


class QasRound:
    """A Round (see ``scheduling.Round``) over the replicas of ``caches``.

    ``first`` is the lane number of each replica's first dispatch; ``commit`` is called once, at
    close. Any call after ``close`` raises RuntimeError. With ``homes`` each replica has lines of its
    own; without, all take from the same. ``batches`` are what is left of fixed batches, by replica.
    """

    def __init__(
        self,
        plan: Plan,
        lanes: Lanes,
        first: Mapping[str, int],
        caches: Mapping[str, CacheView],
        params: QasParams,
        commit: Commit,
        homes: Mapping[str, str] | None = None,
        batches: Mapping[str, Batch] | None = None,
    ) -> None:
        self.plan = plan
        self._lanes = lanes
        self._look_ahead = params.pioneer_look_ahead
        self._commit: Commit | None = commit
        self._taken: set[int] = set()
        shared = Lines(plan)
        dealt = None if homes is None else Homes(plan, homes, caches)
        self._turns = {
            replica: Turn(
                first[replica],
                Pioneers(cache) if params.pioneer else None,
                shared if dealt is None else OwnLines(plan, dealt, replica),
                batches[replica] if batches else None,
            )
            for replica, cache in caches.items()
        }

    def peek(self, replica: str) -> Pick | None:
        """The replica's next pick; None if the window is empty. ValueError for unknown replicas."""
        turn = self._turn(replica)
        offer = turn.offer
        if offer is None or offer[0] in self._taken:
            turn.offer = offer = self._offer(turn)
        return offer[1] if offer else None

    def take(self, replica: str, pick: Pick) -> None:
        turn = self._turn(replica)
        if turn.offer is None or turn.offer[1] is not pick or turn.offer[0] in self._taken:
            raise ValueError(f"{pick.ticket.request_id} is not what {replica} was offered last")
        column = turn.offer[0]
        if turn.pioneers is not None:
            turn.pioneers.send(pick.ticket.skeleton.path(pick.order))
        self._taken.add(column)
        turn.columns.append(column)
        turn.lanes.append(pick.lane)
        turn.offer = None
        if turn.batch is not None:
            turn.batch.drawn = True

    def close(self) -> Mapping[str, DemandTable]:
        if self._commit is None:
            raise RuntimeError("this round is closed")
        commit, self._commit = self._commit, None
        return commit(self, {r: turn for r, turn in self._turns.items() if turn.columns})

    def predicted(self, turn: Turn) -> list[int]:
        """The B_max columns that this replica would get next if the plan went on (A17)."""
        rest = [column for column, _ in turn.batch.left(self._taken)] if turn.batch else []
        upcoming = self._upcoming(turn, turn.next_number + len(rest), self._taken.union(rest))
        return (rest + [column for column, _ in upcoming])[: self._lanes.period]

    def rest_of_batch(self, turn: Turn) -> tuple[Pick, ...]:
        """What the replica's next round goes on with, if batches are fixed."""
        if turn.batch is None or not turn.batch.drawn:
            return ()
        return tuple(pick for _, pick in turn.batch.left(self._taken))

    def _upcoming(self, turn: Turn, number: int, taken: set[int]) -> list[tuple[int, Lane]]:
        """The columns of dispatch ``number`` and those after it, B_max in all; adds to ``taken``."""
        at = turn.lines.start.copy()
        lanes = self._lanes.following(number)
        reach = at[Lane.HOT] + len(taken) + len(lanes)
        columns = {lane: turn.lines.columns(lane, reach) for lane in Lane}
        found: list[tuple[int, Lane]] = []
        for lane in lanes:
            order, position = columns[lane], at[lane]
            while position < len(order) and order[position] in taken:
                position += 1
            if position == len(order):
                break
            taken.add(order[position])
            found.append((order[position], lane))
            at[lane] = position + 1
        return found

    def _turn(self, replica: str) -> Turn:
        if self._commit is None:
            raise RuntimeError("this round is closed")
        try:
            return self._turns[replica]
        except KeyError:
            raise ValueError(f"replica {replica!r} is not part of this round") from None

    def _offer(self, turn: Turn) -> tuple[int, Pick] | None:
        if turn.batch is not None:
            return self._offer_of_batch(turn, turn.batch)
        lane = self._lanes.lane(turn.next_number)
        lines = turn.lines
        first, lines.start[lane] = self._skip(lines, lane, lines.start[lane])
        if first is None:
            return None
        if turn.pioneers is None:
            return first, self.plan.pick(first, lane)
        return self._offer_pioneer(turn, turn.pioneers, lane, first)

    def _offer_of_batch(self, turn: Turn, batch: Batch) -> tuple[int, Pick] | None:
        """The batch's first request that need not wait for another's prefill, else its first."""
        left = batch.left(self._taken)
        if not left:
            left = [
                (column, self.plan.pick(column, lane))
                for column, lane in self._upcoming(turn, turn.next_number, self._taken.copy())
            ]
            turn.batch = Batch(left, drawn=False)
        pioneers = turn.pioneers
        for column, pick in left:
            if column in turn.held:
                continue
            if not pioneers or not pioneers.waits(pick.ticket.skeleton.path(pick.order)):
                return column, pick
            turn.held.add(column)
        return left[0] if left else None

    def _offer_pioneer(
        self, turn: Turn, pioneers: Pioneers, lane: Lane, first: int
    ) -> tuple[int, Pick]:
        """The lane's first request that need not wait for another's prefill, if there is one.

        Who waits once waits until the round ends: in a round prefixes begin to be computed only.
        Only so many are held back; then the first goes.
        """
        column: int | None = first
        position = turn.lines.start[lane]
        while column is not None:
            if column not in turn.held:
                pick = self.plan.pick(column, lane)
                if not pioneers.waits(pick.ticket.skeleton.path(pick.order)):
                    return column, pick
                if len(turn.held) >= self._look_ahead:
                    break
                turn.held.add(column)
            column, position = self._skip(turn.lines, lane, position + 1)
        return first, self.plan.pick(
            first, lane, "; all others that were looked at wait for a prefill too"
        )

    def _skip(self, lines: Lines, lane: Lane, position: int) -> tuple[int | None, int]:
        """The first column of a lane's order from ``position`` that is not taken, and where."""
        taken = self._taken
        while True:
            order = lines.columns(lane, position + 1)
            if position >= len(order):
                return None, position
            column = order[position]
            if column not in taken:
                return column, position
            position += 1
