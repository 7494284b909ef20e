"""The pioneer rule (choice A16): whose prefix somebody else is computing already waits for it.

The engine matches a prompt only against what was inserted before its batch was formed, so requests
that are sent together compute a shared uncached prefix once each. Knows one replica for one round.
"""

from __future__ import annotations

from prism_ray.model import Atom
from prism_ray.scheduling import CacheView

Path = tuple[Atom, ...]


class Pioneers:
    """Who must wait at one replica.

    Our reading of "the same front that is neither cached nor being computed": a request waits while
    any part of its path beyond what is cached is being computed, by a request sent earlier or in this
    round. A request whose path starts with something nobody computes is a pioneer and goes.
    """

    def __init__(self, cache: CacheView) -> None:
        self._cache = cache
        self._sent: set[Path] = set()

    def waits(self, path: Path) -> bool:
        match = self._cache.match(path)
        if match.computing_tokens > match.cached_tokens:
            return True
        beyond = _atoms_within(path, match.cached_tokens) + 1
        return beyond <= len(path) and path[:beyond] in self._sent

    def send(self, path: Path) -> None:
        """A request with this path goes in this round."""
        cached = _atoms_within(path, self._cache.match(path).cached_tokens)
        self._sent.update(path[:end] for end in range(cached + 1, len(path) + 1))


def _atoms_within(path: Path, tokens: int) -> int:
    """How many whole atoms of the path lie within its first ``tokens`` tokens."""
    offset = 0
    for count, atom in enumerate(path):
        offset += atom.tokens
        if offset > tokens:
            return count
    return len(path)
