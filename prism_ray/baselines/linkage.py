"""Average-linkage clustering of a few hundred objects by nearest-neighbour chains; knows no contexts.

Ties are resolved as SciPy's ``linkage`` resolves them, so that trees agree with it; SciPy itself is
not needed in a serving process.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def average_linkage(distances: Floats) -> list[tuple[int, int]]:
    """Merges from a symmetric matrix [n, n] of distances: n - 1 pairs of cluster numbers.

    Clusters 0..n-1 are the objects, merge m makes cluster n + m. Merges are sorted by distance. Costs
    O(n^2) numpy row operations' elements. (Murtagh, 1983; Muellner, 2011, section 3.)
    """
    work = distances.astype(np.float64, copy=True)
    count = len(work)
    np.fill_diagonal(work, np.inf)
    sizes = np.ones(count, dtype=np.int64)
    merges: list[tuple[float, int, int]] = []
    chain: list[int] = []
    for _ in range(count - 1):
        if not chain:
            chain.append(int(np.flatnonzero(sizes)[0]))
        first, second = _mutual_neighbours(chain, work)
        low, high = sorted((first, second))
        merges.append((float(work[first, second]), low, high))
        merged = (sizes[low] * work[low] + sizes[high] * work[high]) / (sizes[low] + sizes[high])
        sizes[high] += sizes[low]
        sizes[low] = 0
        work[high] = work[:, high] = merged
        work[low] = work[:, low] = np.inf
        work[high, high] = np.inf
    merges.sort(key=lambda merge: merge[0])
    return _numbered(merges, count)


def _mutual_neighbours(chain: list[int], work: Floats) -> tuple[int, int]:
    """Follow nearest neighbours from the chain's end until two are each other's; takes them off."""
    while True:
        last = chain[-1]
        row = work[last]
        nearest = int(row.argmin())
        if len(chain) > 1 and row[chain[-2]] <= row[nearest]:
            # The one before is preferred among equals, or the chain could run in a circle.
            return chain.pop(), chain.pop()
        chain.append(nearest)


def _numbered(merges: list[tuple[float, int, int]], count: int) -> list[tuple[int, int]]:
    """Replace objects that stand for their clusters by the clusters' numbers."""
    parents = list(range(2 * count - 1))

    def find(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    pairs = []
    for made, (_, first, second) in enumerate(merges, count):
        low, high = sorted((find(first), find(second)))
        parents[low] = parents[high] = made
        pairs.append((low, high))
    return pairs
