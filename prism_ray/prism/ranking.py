"""Who goes when: overdue requests by a share, the others by what they save; pioneers ahead."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from prism_ray.model import Lane, Order
from prism_ray.prism.shape import Shape
from prism_ray.prism.tree import Place, PlaceTree
from prism_ray.ranking import Offer, Path, Ranking, Waiting
from prism_ray.scheduling import CacheView

LOSSES_HALF_LIFE = 256


@dataclass(slots=True, eq=False)
class Planned:
    """A waiting request with the order that one replica's plan of this round gives it.

    ``cached_tokens`` can be matched now, ``resident_tokens`` also when what is being computed is there.
    """

    waiting: Waiting
    shape: Shape
    order: Order
    path: Path
    cached_tokens: int = 0
    resident_tokens: int = 0

    @property
    def uncached_tokens(self) -> int:
        prompt_tokens = self.waiting.ticket.skeleton.prompt_tokens
        return max(1, prompt_tokens - self.cached_tokens)

    def write(self) -> None:
        """Let the request be written so: another replica's plan may have had another order for it."""
        self.waiting.order, self.waiting.path = self.order, self.path


class Overdue:
    """The right of overdue requests at one replica: a share of the tokens that it computes.

    Each dispatch adds its share; an overdue request goes while something is owed, and pays with what
    it computes. At most ``most`` tokens are owed, so a right that was not used does not pile up.
    """

    def __init__(self, share: float, most: int) -> None:
        self._share = share
        self._most = most
        self._owed = 0.0

    @property
    def due(self) -> bool:
        return self._owed > 0

    def dispatch(self, uncached_tokens: int, *, overdue: bool) -> None:
        self._owed += self._share * uncached_tokens - (uncached_tokens if overdue else 0)
        self._owed = max(-self._most, min(self._owed, self._most))


class Losses:
    """What a replica computes a second time, because its cache gave it up, as a share of all it computes.

    Both are decayed: the last ``half_life`` dispatches count as much as all before them.
    """

    def __init__(self, half_life: int = LOSSES_HALF_LIFE) -> None:
        self._keep = 0.5 ** (1 / half_life)
        self._lost = 0.0
        self._computed = 0.0

    @property
    def share(self) -> float:
        return self._lost / self._computed if self._computed else 0.0

    def dispatch(self, lost_tokens: int, uncached_tokens: int) -> None:
        self._lost = self._lost * self._keep + lost_tokens
        self._computed = self._computed * self._keep + uncached_tokens


class PrismRanking(Ranking):
    """One replica's order in one round; ``line`` has everybody, in the order of the plan.

    ``conversations`` says whether most of them have orders that cannot be planned.
    """

    def __init__(
        self,
        line: Sequence[Planned],
        overdue: Sequence[Planned],
        right: Overdue,
        losses: Losses,
        tree: PlaceTree,
        cache: CacheView,
        *,
        pioneer: bool,
    ) -> None:
        self.line = line
        self.taken: list[Planned] = []
        self.conversations = False
        self._overdue = overdue
        self._right = right
        self._losses = losses
        self._tree = tree
        self._cache = cache
        self._pioneer = pioneer
        self._held: set[str] = set()
        self._offered: tuple[Planned, bool] | None = None

    def first(self, taken: Container[str]) -> Offer | None:
        found: Planned | None = None
        overdue = False
        if self._right.due and (found := self._next(self._overdue, taken)):
            overdue = True
        else:
            found = self._next(self.line, taken)
        if found is None:
            found = next((p for p in self.line if p.waiting.id not in taken), None)
            if found is None:
                return None
        self._offered = found, overdue
        found.write()
        lane = Lane.COLD if overdue else Lane.HOT
        return Offer(found.waiting, lane, "overdue" if overdue else "planned", found.cached_tokens)

    def took(self, offer: Offer) -> None:
        assert self._offered is not None
        planned, overdue = self._offered
        planned.write()
        self._right.dispatch(planned.uncached_tokens, overdue=overdue)
        steps = list(planned.shape.steps(planned.order))
        lost_tokens = max(0, self._tree.written(steps) - planned.resident_tokens)
        self._losses.dispatch(lost_tokens, planned.uncached_tokens)
        planned.resident_tokens = sum(atom.tokens for atom in planned.path)
        self.taken.append(planned)
        self._tree.add(steps, counted=planned.shape.movable)

    def _next(self, line: Sequence[Planned], taken: Container[str]) -> Planned | None:
        for planned in line:
            name = planned.waiting.id
            if name in taken or name in self._held:
                continue
            if not self._pioneer or not self._waits(planned):
                return planned
            self._held.add(name)
        return None

    def _waits(self, planned: Planned) -> bool:
        """Whether what it lacks next is being computed for somebody else."""
        if planned.resident_tokens > planned.cached_tokens:
            return True
        if not self.taken:
            return False
        return any(_share(planned, other) for other in self.taken)

    def positions(self, elsewhere: Container[str]) -> Iterator[Planned]:
        """Those that were taken, then the rest of the line but for what other replicas took."""
        gone = {planned.waiting.id for planned in self.taken}
        yield from self.taken
        for planned in self.line:
            name = planned.waiting.id
            if name not in gone and name not in elsewhere:
                yield planned


def _share(planned: Planned, other: Planned) -> bool:
    """Whether ``other`` computes the first atoms that ``planned`` lacks."""
    path, sent = planned.path, other.path
    end = 0
    for atom, theirs in zip(path, sent, strict=False):
        if atom != theirs:
            return False
        end += atom.tokens
        if end > planned.cached_tokens:
            return True
    return False


def find_resident(tree: PlaceTree, planned: Planned) -> None:
    """Fill in what of a planned path is cached, and what is being computed behind it."""
    place = tree.root
    for step, _ in planned.shape.steps(planned.order):
        child = tree.child(place, step)
        if child is None:
            break
        if child.cached:
            planned.cached_tokens = child.end
        place = child
    planned.resident_tokens = place.end


def resident_places(tree: PlaceTree, planned: Planned) -> Iterator[Place]:
    """The places on a planned path that are resident, or will be."""
    place = tree.root
    for step, _ in planned.shape.steps(planned.order):
        child = place.children.get(step)
        if child is None or child.end > planned.resident_tokens:
            return
        yield child
        place = child
