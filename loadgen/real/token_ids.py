"""Token ids for atoms: a trace names its prompts by digests, a real engine wants numbers.

Knows no request and no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from prism_ray.model import Atom

FIRST_ID = 512
"""Below lie a vocabulary's special tokens and single bytes."""


class AtomTokens:
    """The token ids of atoms: pseudo-random in the atom's id, so that any trace runs on any model.

    Two atoms never begin with the same id while there are ids left, so that prompts part exactly
    where their atoms do. Where that takes another first id than the digest asks for, the earlier
    comer keeps it: ``learn`` a whole trace first, in its own order, and every run gets the same ids.
    """

    def __init__(self, vocabulary: int, first_id: int = FIRST_ID) -> None:
        if vocabulary <= first_id:
            raise ValueError(f"a vocabulary of {vocabulary} has no ids from {first_id} on")
        self._first = first_id
        self._size = vocabulary - first_id
        self._ids: dict[bytes, list[int]] = {}
        self._taken: set[int] = set()

    def __contains__(self, atom: Atom) -> bool:
        return atom.id in self._ids

    def learn(self, path: Iterable[Atom]) -> None:
        """Fix the ids of all atoms of a path."""
        for atom in path:
            self.of(atom)

    def bind(self, path: Sequence[Atom], ids: Sequence[int]) -> None:
        """Say what the ids of generated atoms really are. Those that are in use already stay.

        Nothing is bound unless the lengths agree: an answer that was cut short continues nowhere.
        """
        if len(ids) != sum(atom.tokens for atom in path):
            return
        start = 0
        for atom in path:
            self._ids.setdefault(atom.id, list(ids[start : start + atom.tokens]))
            start += atom.tokens

    def of(self, atom: Atom) -> list[int]:
        """The atom's ids. Raises ValueError if the same id named another number of tokens before."""
        ids = self._ids.get(atom.id)
        if ids is None:
            ids = self._ids[atom.id] = self._draw(atom)
        if len(ids) != atom.tokens:
            raise ValueError(f"atom {atom.id.hex()} has {len(ids)} tokens, not {atom.tokens}")
        return ids

    def prompt(self, path: Iterable[Atom]) -> list[int]:
        """The ids of a whole path."""
        return [number for atom in path for number in self.of(atom)]

    def _draw(self, atom: Atom) -> list[int]:
        if not atom.tokens:
            return []
        seed = int.from_bytes(hashlib.blake2b(atom.id, digest_size=16).digest())
        drawn: list[int] = (
            np.random.default_rng(seed).integers(self._size, size=atom.tokens).tolist()
        )
        drawn[0] = self._free(drawn[0])
        return [self._first + number for number in drawn]

    def _free(self, wanted: int) -> int:
        if len(self._taken) == self._size:
            self._taken.clear()
        while wanted in self._taken:
            wanted = (wanted + 1) % self._size
        self._taken.add(wanted)
        return wanted
