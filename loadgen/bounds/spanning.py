"""The heaviest spanning tree over what pairs of prompts have in common (bound B1); numpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.bounds.blocks import Prompt
from prism_ray.model import Atom

Matrix = NDArray[np.float32]


def common_tokens(prompts: Sequence[Prompt], page_size: int = 1) -> Matrix:
    """For each pair the tokens that the one can find behind the other, whatever the segments' order.

    What they share as sets of atoms, in whole pages, without a prompt's last token; what was
    generated counts as part of what was found. Symmetric (the larger of both directions), N × N.
    """
    asked = [_places(prompt.path) for prompt in prompts]
    there = [_places((*prompt.path, *prompt.output)) for prompt in prompts]
    holders = Counter(place for places in there for place in places)
    shared = [place for place, count in holders.items() if count > 1]
    column = {place: index for index, place in enumerate(shared)}
    tokens = np.zeros(len(shared), np.float32)
    asking = _incidence(asked, column, tokens)
    having = _incidence(there, column, tokens)
    common = (asking * tokens) @ having.T
    longest = np.array([prompt.tokens - 1 for prompt in prompts], np.float32)
    common = np.minimum(common, longest[:, None])
    common = np.maximum(common, common.T)
    return np.asarray(common - common % page_size, np.float32)


def _places(atoms: Iterable[Atom]) -> dict[tuple[bytes, int], int]:
    """Tokens by (atom, which time it occurs)."""
    times: Counter[bytes] = Counter()
    places: dict[tuple[bytes, int], int] = {}
    for atom in atoms:
        places[atom.id, times[atom.id]] = atom.tokens
        times[atom.id] += 1
    return places


def _incidence(
    rows: Sequence[dict[tuple[bytes, int], int]],
    column: dict[tuple[bytes, int], int],
    tokens: NDArray[np.float32],
) -> Matrix:
    matrix = np.zeros((len(rows), len(column)), np.float32)
    for row, places in enumerate(rows):
        for place, length in places.items():
            index = column.get(place)
            if index is not None:
                matrix[row, index] = 1.0
                tokens[index] = length
    return matrix


def heaviest_tree(weights: Matrix) -> int:
    """Total weight of a maximum spanning tree (Prim, dense, O(N²))."""
    count = len(weights)
    if count < 2:
        return 0
    best = weights[0].astype(np.float64)
    best[0] = -1.0
    total = 0.0
    for _ in range(count - 1):
        nearest = int(best.argmax())
        total += best[nearest]
        outside = best >= 0
        np.maximum(best, weights[nearest], out=best, where=outside)
        best[nearest] = -1.0
    return round(total)
