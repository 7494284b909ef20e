"""The tree of places that prompts were written to at one replica, as a plan walks it; evicts nothing.

Which of them are resident is the cache view's to say; the tree remembers what was dispatched, since a
view can be asked about a path but does not list what continues it.
"""

from __future__ import annotations

from collections.abc import Iterable

from prism_ray.dart.anchors import ROOT_KEY, PathKey, extend_path_key
from prism_ray.model import Atom
from prism_ray.scheduling import CacheView

Path = tuple[Atom, ...]
Step = bytes
"""Name of what one slot adds to a path: its gap and its segment."""

FADED = 3 / 4
"""Below this many decayed uses a place is worth no more than recency says."""
WEIGHT_MAX = 2.0**40


class Place:
    """A front of prompts: its path, where it ends, and what was written behind it.

    ``key`` names it in demand tables. ``cached`` and ``computing`` are what the view said when it was
    asked last (``asked``).
    """

    __slots__ = (
        "asked",
        "cached",
        "children",
        "computing",
        "end",
        "key",
        "parent",
        "path",
        "step",
        "tokens",
        "uses",
    )

    def __init__(self, parent: Place | None, step: Step, atoms: Path) -> None:
        self.parent = parent
        self.step = step
        self.path: Path = (*parent.path, *atoms) if parent else ()
        self.key: PathKey = extend_path_key(parent.key, atoms) if parent else ROOT_KEY
        self.tokens = tokens = sum(atom.tokens for atom in atoms)
        self.end: int = tokens + (parent.end if parent else 0)
        self.children: dict[Step, Place] = {}
        self.uses = 0.0
        self.cached = parent is None
        self.computing = False
        self.asked = -1


class PlaceTree:
    """Places below one root; ``begin`` starts a round, in which each place is asked about once.

    Places that are not resident any more are dropped when there are more than twice as many as were
    resident at the last sweep, and at least ``sweep_above``.
    """

    def __init__(self, sweep_above: int = 4096, half_life: int = 2000) -> None:
        self.root = Place(None, b"", ())
        self._cache: CacheView | None = None
        self._round = 0
        self._places = 0
        self._growth = 2.0 ** (1 / half_life)
        self._weight = 1.0
        self._used: dict[Place, None] = {}
        self._sweep_above = sweep_above
        self._sweep_at = sweep_above

    def __len__(self) -> int:
        return self._places

    def begin(self, cache: CacheView) -> None:
        """A round begins: what the view says may have changed."""
        self._cache = cache
        self._round += 1
        if self._places > self._sweep_at:
            self._sweep()

    def child(self, place: Place, step: Step) -> Place | None:
        """The resident continuation of a resident place by ``step``, cached or being computed."""
        found = place.children.get(step)
        if found is None:
            return None
        if found.asked != self._round:
            self._ask(found)
        return found if found.cached or found.computing else None

    def written(self, steps: Iterable[tuple[Step, Path]]) -> int:
        """Tokens of the path by these steps that were sent before, resident or not any more."""
        place = self.root
        for step, _ in steps:
            found = place.children.get(step)
            if found is None:
                break
            place = found
        return place.end

    def add(self, steps: Iterable[tuple[Step, Path]], *, counted: bool = True) -> None:
        """A request was sent whose path goes by these steps, each with the atoms that it adds.

        ``counted``: its use of cached places counts for what they are worth.
        """
        place = self.root
        self._age()
        for step, atoms in steps:
            found = place.children.get(step)
            if found is None:
                found = place.children[step] = Place(place, step, atoms)
                self._places += 1
            if not found.cached:
                found.computing = True
                found.asked = self._round
            elif counted:
                self._used[found] = None
                found.uses += self._weight
            place = found

    def worth(self) -> list[tuple[float, Place]]:
        """Places that were found cached by requests that counted, those used most first.

        Uses halve with every ``half_life`` requests; what has faded is left out.
        """
        least = FADED * self._weight
        for place in [place for place in self._used if place.uses < least]:
            self._forget_uses(place)
        found = [(place.uses / self._weight, place) for place in self._used]
        return sorted(found, key=lambda pair: (-pair[0], pair[1].key))

    def _forget_uses(self, place: Place) -> None:
        place.uses = 0.0
        self._used.pop(place, None)

    def _age(self) -> None:
        """Later uses count for more, instead of earlier ones for less."""
        self._weight *= self._growth
        if self._weight > WEIGHT_MAX:
            for place in self._used:
                place.uses /= self._weight
            self._weight = 1.0

    def _ask(self, place: Place) -> None:
        assert self._cache is not None
        match = self._cache.match(place.path)
        place.cached = match.cached_tokens >= place.end
        place.computing = match.computing_tokens >= place.end and not place.cached
        place.asked = self._round

    def _sweep(self) -> None:
        """Drop what is not resident, with all below it: a front that is gone is gone with its ends."""
        kept = 0
        stack = [self.root]
        while stack:
            place = stack.pop()
            for step in list(place.children):
                if self.child(place, step) is None:
                    self._forget_uses(place.children.pop(step))
                else:
                    kept += 1
                    stack.append(place.children[step])
        self._places = kept
        self._sweep_at = max(self._sweep_above, 2 * kept)
