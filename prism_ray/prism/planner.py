"""Planned serialization: in which order each waiting request writes its segments, all considered.

Decides orders only; which request goes when is the ranking's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappushpop

from prism_ray.prism.shape import Choice, Walker
from prism_ray.prism.tree import Place, PlaceTree, Step

Popularity = Callable[[Choice], float]
"""How often a segment has been asked for lately."""

VISITS_MAX = 256
"""Places looked at to find one request's longest resident continuation."""


class Planner:
    """Plans requests whose fronts end at the same place, from there down (algorithms, ``plan``).

    At each place the segment goes first that saves most: its length for each request beyond the one
    that computes it (for all, if it is resident), and what lies resident behind it. Requests that have
    it follow it, unless it tears them from a longer resident path. What nobody shares is written after
    what is resident, most popular first, since that is most likely to be asked for again; equals stay
    as the client wrote them.
    """

    def __init__(self, tree: PlaceTree, popularity: Popularity, *, share: bool = True) -> None:
        self._tree = tree
        self.popularity = popularity
        self._share = share
        self._visits = 0

    def plan(self, walkers: Iterable[Walker]) -> None:
        """Bring every walker to its end."""
        fronts: dict[bytes, list[Walker]] = {}
        for walker in walkers:
            front = walker.shape.front
            fronts.setdefault(b"" if front is None else front.id, []).append(walker)
        stack: list[tuple[Place | None, list[Walker]]] = []
        for name, group in fronts.items():
            root = self._tree.root
            stack.append((self._tree.child(root, name) if name else root, group))
        while stack:
            place, group = stack.pop()
            stack.extend(self._branch(place, group))

    def longest(self, place: Place, walker: Walker) -> tuple[int, Choice | None]:
        """Tokens and first choice of the longest resident continuation that a request can write."""
        self._visits = 0
        return self._longest(place, walker.shape.slots, walker.slot, walker.used)

    def longest_behind(self, child: Place, walker: Walker, choice: Choice) -> int:
        """Tokens of the longest resident continuation once a request has taken ``choice``."""
        self._visits = 0
        slots, used = walker.shape.slots, walker.used | choice.bit
        return self._longest(child, slots, walker.slot + 1, used)[0]

    def _longest(
        self, place: Place, slots: Sequence[Sequence[Choice]], slot: int, used: int
    ) -> tuple[int, Choice | None]:
        best, first = 0, None
        if slot == len(slots) or not place.children:
            return best, first
        for choice in slots[slot]:
            if choice.bit & used or self._visits > VISITS_MAX:
                continue
            child = self._tree.child(place, choice.step)
            if child is None:
                continue
            self._visits += 1
            tokens = child.tokens + self._longest(child, slots, slot + 1, used | choice.bit)[0]
            if tokens > best:
                best, first = tokens, choice
        return best, first

    def _branch(
        self, place: Place | None, group: list[Walker]
    ) -> list[tuple[Place | None, list[Walker]]]:
        """Send the requests of a place to its continuations; those that share nothing to their end."""
        if len(group) == 1 or not self._share:
            for walker in group:
                self._finish(place, walker)
            return []
        fork = _Fork(self, self._tree, place, group)
        branches = list(fork.split())
        for walker in fork.left():
            self._finish(place, walker)
        return branches

    def _finish(self, place: Place | None, walker: Walker) -> None:
        """Along what is resident, then the rest by popularity."""
        while place is not None:
            _, first = self.longest(place, walker)
            if first is None:
                break
            walker.take(first)
            place = self._tree.child(place, first.step)
        while choices := walker.choices():
            walker.take(max(choices, key=lambda c: (self.popularity(c), -c.number)))


class _Fork:
    """The requests at one place, and what each next segment would save them."""

    def __init__(
        self, planner: Planner, tree: PlaceTree, place: Place | None, group: list[Walker]
    ) -> None:
        self._planner = planner
        self._tree = tree
        self._place = place
        self._members: dict[Step, list[tuple[Walker, Choice]]] = {}
        self._count: dict[Step, int] = {}
        self._behind: dict[Step, int] = {}
        self._resident: dict[Walker, tuple[int, Choice | None]] = {}
        for walker in group:
            self._enter(walker)

    def _enter(self, walker: Walker) -> None:
        place = self._place
        longest = (0, None) if place is None else self._planner.longest(place, walker)
        self._resident[walker] = longest
        seen: set[Step] = set()
        for choice in walker.choices():
            if choice.step not in seen:
                seen.add(choice.step)
                self._members.setdefault(choice.step, []).append((walker, choice))
                self._count[choice.step] = self._count.get(choice.step, 0) + 1
        tokens, first = longest
        if first is not None:
            self._behind[first.step] = self._behind.get(first.step, 0) + tokens - first.tokens

    def left(self) -> Iterable[Walker]:
        """Those that no branch took."""
        return self._resident

    def split(self) -> Iterable[tuple[Place | None, list[Walker]]]:
        heap = [self._entry(step) for step, n in self._count.items() if n > 1 or self._child(step)]
        heapify(heap)
        while heap:
            entry = heappop(heap)
            while heap and (now := self._entry(entry[2])) != entry:
                # Savings only shrink as requests leave, so the best of up-to-date entries is best.
                entry = heappushpop(heap, now)
            if self._entry(entry[2])[0] >= 0:
                continue
            step = entry[2]
            joined = self._join(step)
            if joined:
                yield self._child(step), joined

    def _entry(self, step: Step) -> tuple[float, float, Step]:
        _, choice = self._members[step][0]
        payers = 0 if self._child(step) else 1
        gain = choice.tokens * (self._count[step] - payers) + self._behind.get(step, 0)
        return -gain, -self._planner.popularity(choice), step

    def _child(self, step: Step) -> Place | None:
        return None if self._place is None else self._tree.child(self._place, step)

    def _join(self, step: Step) -> list[Walker]:
        child = self._child(step)
        sharing = self._count[step]
        joined = []
        for walker, choice in self._members[step]:
            resident = self._resident.get(walker)
            if resident is None or not self._follows(walker, choice, child, sharing, *resident):
                continue
            joined.append(walker)
            self._leave(walker)
            walker.take(choice)
        return joined

    def _follows(
        self,
        walker: Walker,
        choice: Choice,
        child: Place | None,
        sharing: int,
        tokens: int,
        first: Choice | None,
    ) -> bool:
        """Whether the way by ``choice``, with so many others, saves as much as the longest resident one.

        ``tokens`` are the longest one's, ``first`` is where it begins.
        """
        if first is None or first.step == choice.step:
            return True
        if child is None:
            # One of those that share it computes it.
            return choice.tokens * (sharing - 1) >= tokens * sharing
        return choice.tokens + self._planner.longest_behind(child, walker, choice) >= tokens

    def _leave(self, walker: Walker) -> None:
        tokens, first = self._resident.pop(walker)
        for step in {choice.step for choice in walker.choices()}:
            self._count[step] -= 1
        if first is not None:
            self._behind[first.step] -= tokens - first.tokens
