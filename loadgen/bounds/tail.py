"""The least P99 of TTFT that one server can have: what no order of requests can go below.

An estimate of what is left for a policy, not of what one reaches: the server has no steps, no batches
and no decoding, and each request's work is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_STEPS = 40
_PRECISE_S = 1e-4


def least_p99_s(
    arrivals_s: Sequence[float], work_s: Sequence[float], percent: float = 99.0
) -> float:
    """Seconds; every request leaves the server at the earliest when its own work is done.

    As many requests as lie above the percentile are left out with their work, those whose removal
    helps most; the longest stay of the others is least in order of arrival. ``arrivals_s`` ascend.
    ValueError for no requests, times that do not ascend, or negative work.
    """
    arrivals = np.asarray(arrivals_s, dtype=float)
    work = np.asarray(work_s, dtype=float)
    if not len(arrivals) or len(arrivals) != len(work):
        raise ValueError("arrivals and work must be as many, and at least one")
    if (np.diff(arrivals) < 0).any() or (work < 0).any():
        raise ValueError("arrivals must ascend, and work cannot be negative")
    last = len(arrivals) - 1
    # numpy's percentile lies between two neighbours: counting from the lower one keeps this a bound.
    spared = last - math.floor(percent / 100 * last)
    low, high = 0.0, float((_completions(arrivals, work) - arrivals).max())
    for _ in range(_STEPS):
        if high - low < _PRECISE_S:
            break
        middle = (low + high) / 2
        if _late(arrivals, work, middle, spared) <= spared:
            high = middle
        else:
            low = middle
    return low


def _completions(arrivals: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Of each request, served one by one as they arrive."""
    done = np.cumsum(work)
    return np.asarray(done + np.maximum.accumulate(arrivals - (done - work)))


def _late(arrivals: np.ndarray, work: np.ndarray, stay_s: float, enough: int) -> int:
    """Fewest requests to leave out so that the others stay for at most ``stay_s``.

    Kise, Ibaraki and Mine (1978), exact where release times and deadlines have the same order:
    at the first late request that one goes, of it and those before it, which brings the end of the
    schedule forward most. Stops counting above ``enough``.
    """
    work = work.copy()
    kept = np.ones(len(work), dtype=bool)
    for removed in range(enough + 1):
        completions = _completions(arrivals, work)
        late = np.flatnonzero(kept & (completions > arrivals + stay_s + 1e-12))
        if not len(late):
            return removed
        end = int(late[0]) + 1
        waits = np.where(kept[:end], completions[:end] - work[:end] - arrivals[:end], np.inf)
        # What a removal brings is cut off by the shortest wait of those that follow.
        after = np.minimum.accumulate(np.append(waits[1:], np.inf)[::-1])[::-1]
        gain = np.where(kept[:end], np.minimum(work[:end], after), -1.0)
        gone = int(gain.argmax())
        kept[gone] = False
        work[gone] = 0.0
    return enough + 1
