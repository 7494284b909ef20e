"""Random small queues and caches for the tests of the peers; decides nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from prism_ray.model import Atom, Pick, Segment, Skeleton, Ticket
from prism_ray.scheduling import CacheView, Match, Scheduler

Path = tuple[Atom, ...]


class ResidentPaths:
    """A cache that has computed certain paths, and is computing others."""

    def __init__(self, cached: Iterable[Path] = (), computing: Iterable[Path] = ()) -> None:
        self._cached = _prefixes(cached)
        self._computing = self._cached | _prefixes(computing)

    def match(self, path: Path) -> Match:
        return Match(_longest(path, self._cached), _longest(path, self._computing))


def _prefixes(paths: Iterable[Path]) -> set[Path]:
    return {path[:end] for path in paths for end in range(1, len(path) + 1)}


def _longest(path: Path, known: set[Path]) -> int:
    end = max((end for end in range(1, len(path) + 1) if path[:end] in known), default=0)
    return sum(atom.tokens for atom in path[:end])


def segment(name: str, tokens: int = 40, run: int | None = 0) -> Segment:
    return Segment(name.encode(), tokens, run=run)


def ticket(name: str, letters: str, *, system: str = "", private: int = 5, run: int = 0) -> Ticket:
    """A request over one-letter segments of 40 tokens."""
    segments = tuple(segment(letter, run=run) for letter in letters)
    first = segment(system, 60) if system else None
    gaps = tuple(Atom(b"", 0) for _ in segments)
    return Ticket(name, Skeleton(first, segments, gaps, private), 0.0)


def random_ticket(
    rng: Random, name: str, *, alphabet: str = "abcdef", sizes: bool = True
) -> Ticket:
    """Up to five segments whose length depends on their letter, some under a system prefix."""
    letters = rng.sample(alphabet, rng.randint(0, min(5, len(alphabet))))
    segments = tuple(
        Segment(x.encode(), 10 + 7 * (ord(x) % 5) if sizes else 40, run=0) for x in letters
    )
    system = segment(rng.choice("ST"), 24) if rng.random() < 0.5 else None
    gaps = tuple(Atom(b"gap", 2) if rng.random() < 0.3 else Atom(b"", 0) for _ in segments)
    return Ticket(name, Skeleton(system, segments, gaps, rng.randint(0, 20)), 0.0)


def random_cache(rng: Random, tickets: Iterable[Ticket]) -> ResidentPaths:
    """Some prefixes of some of these requests' paths."""
    paths = [t.skeleton.path(t.skeleton.native_order) for t in tickets]
    cut = [path[: rng.randint(0, len(path))] for path in paths if rng.random() < 0.5]
    half = len(cut) // 2
    return ResidentPaths(cut[half:], cut[:half])


def play(
    scheduler: Scheduler, caches: Mapping[str, CacheView], asks: Iterable[str]
) -> list[tuple[str, Pick]]:
    """One round in which these replicas ask in turn; who was offered nothing gets nothing."""
    opened = scheduler.open_round(caches)
    taken = []
    for replica in asks:
        pick = opened.peek(replica)
        if pick is not None:
            assert opened.peek(replica) is pick, "peek is repeatable"
            opened.take(replica, pick)
            taken.append((replica, pick))
    opened.close()
    return taken


def drain(scheduler: Scheduler, cache: CacheView | None = None) -> list[str]:
    """Ids of all that waits, in the order of one round that takes everything."""
    asks = ["r"] * len(scheduler)
    return [
        pick.ticket.request_id for _, pick in play(scheduler, {"r": cache or ResidentPaths()}, asks)
    ]
