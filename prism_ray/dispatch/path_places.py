"""Where the atoms of a path lie in a tree of prompts; ``dart.anchors`` names places."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from operator import attrgetter

from prism_ray.dart.anchors import PathKey, path_keys
from prism_ray.model import Atom

Place = tuple[PathKey, int]
"""A path key, and the token offset at which its atom ends."""

_tokens = attrgetter("tokens")


@lru_cache(maxsize=2048)
def places_of(path: tuple[Atom, ...]) -> tuple[Place, ...]:
    """The place of each atom of ``path``.

    Naming them takes a digest an atom, and a waiting request's path is looked at in every round, for
    every replica: twice a window's paths are remembered.
    """
    ends = accumulate(map(_tokens, path))
    return tuple(zip(path_keys(path), ends, strict=True))
