"""A slow twin of ``prism``: the plan as a plain recursion over lists, and who goes, from the definitions.

Written from the pseudocode of the plan and ``docs/policies/prism.md``. It keeps no tree and no heap:
whether a front of a prompt is resident is asked of the cache view each time. Prompts are tuples of
atoms, without gaps, and no segment comes twice in one.

Where the definitions leave something open: a segment that nobody follows is passed over, not the end
of the branch; a request follows a segment that has yet to be computed if its part of what that saves
is at least what lies resident for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prism_ray.model import Atom, Ticket
from prism_ray.scheduling import CacheView

Path = tuple[Atom, ...]
Popularity = Callable[[Atom], float]


@dataclass(frozen=True)
class Params:
    share: bool = True
    pioneer: bool = True
    order: str = "arrival"
    overdue_share: float = 0.25
    overdue_after_tokens: int = 4096
    window_max: int = 128
    half_life: int = 1000


@dataclass
class World:
    """What the policy has seen: arrivals in order, what was sent, and who waits."""

    params: Params
    queue: list[Ticket] = field(default_factory=list)
    arrivals: list[frozenset[bytes]] = field(default_factory=list)
    sent: set[Path] = field(default_factory=set)
    computed: int = 0
    computed_at_arrival: dict[str, int] = field(default_factory=dict)
    owed: float = 0.0

    def arrive(self, ticket: Ticket, at_head: bool = False) -> None:
        self.queue.insert(0 if at_head else len(self.queue), ticket)
        self.arrivals.append(frozenset(s.id for s in ticket.skeleton.segments))
        self.computed_at_arrival[ticket.request_id] = self.computed

    def popularity(self, atom: Atom) -> float:
        """Arrivals that had it, halved for every ``half_life`` arrivals since."""
        last = len(self.arrivals)
        ages = (last - n for n, ids in enumerate(self.arrivals, 1) if atom.id in ids)
        return sum(0.5 ** (age / self.params.half_life) for age in ages)


@dataclass
class Going:
    """A request in one round: how it is written, and what of that is there or on its way."""

    ticket: Ticket
    path: Path
    cached: int
    resident: int

    @property
    def uncached(self) -> int:
        return max(1, self.ticket.skeleton.prompt_tokens - self.cached)


def tokens(path: Path) -> int:
    return sum(atom.tokens for atom in path)


def segments(ticket: Ticket) -> list[Atom]:
    return [Atom(s.id, s.tokens) for s in ticket.skeleton.segments]


def front(ticket: Ticket) -> Path:
    system = ticket.skeleton.system
    return () if system is None else (Atom(system.id, system.tokens),)


class Planning:
    """One round's plan over a cache, for requests whose segments may all trade places."""

    def __init__(self, world: World, cache: CacheView) -> None:
        self.world = world
        self.cache = cache
        self.orders: dict[str, Path] = {}

    def resident(self, path: Path) -> bool:
        """Sent to this replica before, and still cached or being computed."""
        return path in self.world.sent and self.cache.match(path).computing_tokens >= tokens(path)

    def longest(self, place: Path, left: Sequence[Atom]) -> tuple[int, Atom | None]:
        """The longest resident continuation of ``place`` with segments of ``left``, and its first."""
        best: tuple[int, Atom | None] = (0, None)
        for atom in left:
            if self.resident((*place, atom)):
                behind, _ = self.longest((*place, atom), without(atom, left))
                if atom.tokens + behind > best[0]:
                    best = atom.tokens + behind, atom
        return best

    def plan(self, place: Path, group: dict[str, list[Atom]]) -> None:
        """``group``: the segments that each request at ``place`` has yet to write."""
        if len(group) == 1 or not self.world.params.share:
            for name, left in group.items():
                self.finish(place, name, left)
            return
        longest = {name: self.longest(place, left) for name, left in group.items()}
        here = dict(group)
        passed: set[Atom] = set()
        while True:
            gains = {
                atom: self.gain(atom, place, here, longest)
                for left in here.values()
                for atom in left
                if atom not in passed
            }
            if not gains or max(gains.values()) <= 0:
                break
            best = min(gains, key=lambda a: (-gains[a], -self.world.popularity(a), a.id))
            passed.add(best)
            sharing = sum(best in left for left in here.values())
            joined = {
                name: without(best, left)
                for name, left in here.items()
                if best in left and self.follows(best, place, left, sharing, *longest[name])
            }
            if joined:
                self.plan((*place, best), joined)
            here = {name: left for name, left in here.items() if name not in joined}
        for name, left in here.items():
            self.finish(place, name, left)

    def gain(
        self,
        atom: Atom,
        place: Path,
        here: dict[str, list[Atom]],
        longest: dict[str, tuple[int, Atom | None]],
    ) -> int:
        payers = 0 if self.resident((*place, atom)) else 1
        sharing = sum(atom in left for left in here.values())
        behind = sum(longest[n][0] - atom.tokens for n in here if longest[n][1] == atom)
        return atom.tokens * (sharing - payers) + behind

    def follows(
        self,
        atom: Atom,
        place: Path,
        left: Sequence[Atom],
        sharing: int,
        most: int,
        by: Atom | None,
    ) -> bool:
        """Unless it tears the request from ``most`` resident tokens that begin ``by`` another way."""
        if by is None or by == atom:
            return True
        if self.resident((*place, atom)):
            return atom.tokens + self.longest((*place, atom), without(atom, left))[0] >= most
        return atom.tokens * (sharing - 1) / sharing >= most

    def finish(self, place: Path, name: str, left: Sequence[Atom]) -> None:
        """Along the longest resident path, then the most popular first, equals as they came."""
        _, first = self.longest(place, left)
        if first is not None:
            self.finish((*place, first), name, without(first, left))
            return
        self.orders[name] = (*place, *sorted(left, key=lambda atom: -self.world.popularity(atom)))


def without(atom: Atom, left: Sequence[Atom]) -> list[Atom]:
    return [other for other in left if other != atom]


def planned(world: World, cache: CacheView) -> list[Going]:
    """The scanned requests, each as the plan writes it; those that cannot move as their clients did."""
    window = world.queue[: world.params.window_max]
    planning = Planning(world, cache)
    for place in dict.fromkeys(front(ticket) for ticket in window):
        group = {t.request_id: segments(t) for t in window if front(t) == place and t.skeleton.runs}
        if group:
            planning.plan(place, group)
    going = []
    for ticket in window:
        if ticket.skeleton.runs:
            path = planning.orders[ticket.request_id]
            fronts = [path[: n + 1] for n in range(len(path)) if planning.resident(path[: n + 1])]
            there = [f for f in fronts if cache.match(f).cached_tokens >= tokens(f)]
            cached, resident = (max(map(tokens, found), default=0) for found in (there, fronts))
        else:
            path = (*front(ticket), *segments(ticket))
            cached, resident = cache.match(path)
        going.append(Going(ticket, path, cached, resident))
    return going


def round_of(world: World, cache: CacheView, count: int) -> list[tuple[Going, bool]]:
    """What one round sends, each with whether it goes as overdue; the world moves on."""
    params = world.params
    line = planned(world, cache)
    waiting_work = sum(going.uncached for going in line)
    due_before = world.computed - params.overdue_after_tokens - waiting_work
    overdue = [g for g in line if world.computed_at_arrival[g.ticket.request_id] < due_before]
    if params.order == "match":
        line = sorted(line, key=lambda going: -going.cached)
    sent: list[tuple[Going, bool]] = []
    held: list[Going] = []

    def lacks_what_is_computed(going: Going) -> bool:
        if going.resident > going.cached:
            return True
        lacking = [n for n in range(len(going.path)) if tokens(going.path[: n + 1]) > going.cached]
        if not lacking:
            return False
        needed = going.path[: lacking[0] + 1]
        return any(other.path[: len(needed)] == needed for other, _ in sent)

    def first_of(candidates: list[Going]) -> Going | None:
        for going in candidates:
            if going in held or any(going is other for other, _ in sent):
                continue
            if not params.pioneer or not lacks_what_is_computed(going):
                return going
            held.append(going)
        return None

    while len(sent) < min(count, len(line)):
        chosen = first_of(overdue) if world.owed > 0 else None
        late = chosen is not None
        chosen = chosen or first_of(line)
        if chosen is None:
            chosen = next(g for g in line if not any(g is other for other, _ in sent))
        sent.append((chosen, late))
        world.owed += params.overdue_share * chosen.uncached - (chosen.uncached if late else 0)
        world.owed = max(-2048.0, min(world.owed, 2048.0))
    for going, _ in sent:
        world.queue.remove(going.ticket)
        world.computed += going.uncached
        world.sent |= {going.path[: n + 1] for n in range(len(going.path))}
    return sent
