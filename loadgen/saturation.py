"""Is a server saturated? Concurrency and TTFT regressed on time: below the knee neither grows.

Past the knee the queue grows for as long as requests arrive, so a mean says how long one measured and
nothing of the server. Such points are to be marked, not averaged. Pure; numpy only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.rows import Outcome, RequestRow

BATCHES = 10
"""Stretches of time whose means are regressed: neighbouring values hang together, their means hardly."""
RELEVANT_GROWTH = 0.5
"""A slope counts if over the window it comes to half of the mean; by a straight line from zero it is 2."""
REFUSED_SHARE = 0.01
_TOO_MUCH = (408, 429)
"""Statuses below 500 that say that there is too much; all others say that the request is wrong."""
_SAMPLES = 400
_FEWEST_BATCHES = 5
_T99 = {3: 4.541, 4: 3.747, 5: 3.365, 6: 3.143, 7: 2.998, 8: 2.896}
"""One-sided 99% quantiles of Student's t by degrees of freedom."""


@dataclass(frozen=True)
class Trend:
    """A straight line through batch means: its slope per second, the change over the window as a share
    of the mean, and whether that is growth, neither chance nor a trifle."""

    mean: float
    slope_per_s: float
    growth: float
    grows: bool


@dataclass(frozen=True)
class Saturation:
    """``saturated`` is None where the window is too short to tell; ``reason`` says why in words."""

    saturated: bool | None
    reason: str
    concurrency: Trend | None = None
    ttft: Trend | None = None


def detect(rows: Sequence[RequestRow], from_s: float, to_s: float) -> Saturation:
    """From the rows of an open loop, over the window in which requests arrived steadily.

    Saturated: requests under way and TTFT both grow, or the server turns away or loses over 1%.
    """
    inside = [r for r in rows if from_s <= r.scheduled_s <= to_s]
    lost = Counter(str(r.outcome) for r in inside if _turned_away(r))
    times = np.linspace(from_s, to_s, _SAMPLES)
    concurrency = trend(times, under_way(rows, times))
    streamed = [(r.scheduled_s, r.ttft_s) for r in inside if r.answered and r.ttft_s is not None]
    ttft = trend([t for t, _ in streamed], [v for _, v in streamed])
    if inside and lost.total() / len(inside) > REFUSED_SHARE:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(lost.items()))
        reason = f"{lost.total()} of {len(inside)} requests were turned away or lost ({kinds})"
        return Saturation(True, reason, concurrency, ttft)
    if concurrency is None or (ttft is None and streamed):
        return Saturation(None, "too short to tell", concurrency, ttft)
    grows = concurrency.grows and (ttft is None or ttft.grows)
    reason = (
        f"over the window the requests under way change by {concurrency.growth:+.0%} of their mean"
        + (f", TTFT by {ttft.growth:+.0%}" if ttft is not None else "")
    )
    return Saturation(grows, reason, concurrency, ttft)


def _turned_away(row: RequestRow) -> bool:
    """Whether a request failed as requests of an overloaded server do: not for what it asked, nor for
    an answer that no client could read."""
    if row.outcome is Outcome.REFUSED:
        return row.status is None or row.status >= 500 or row.status in _TOO_MUCH
    return row.outcome not in (Outcome.ANSWERED, Outcome.MALFORMED)


def under_way(rows: Sequence[RequestRow], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many requests had arrived and not ended at each of ``times`` (seconds of the run)."""
    starts = np.sort([r.scheduled_s for r in rows])
    ends = np.sort([math.inf if r.ended_s is None else r.ended_s for r in rows])
    arrived = np.searchsorted(starts, times, side="right")
    ended = np.searchsorted(ends, times, side="right")
    return np.asarray(arrived - ended, dtype=np.float64)


def trend(
    times: Sequence[float] | NDArray[np.float64], values: Sequence[float] | NDArray[np.float64]
) -> Trend | None:
    """The trend of ``values`` over ``times`` by the means of ``BATCHES`` stretches; None if too few of
    them have values."""
    x, y = np.asarray(times, dtype=float), np.asarray(values, dtype=float)
    if not len(x) or x.max() == x.min():
        return None
    window_s = float(x.max() - x.min())
    batch = np.minimum(((x - x.min()) / window_s * BATCHES).astype(int), BATCHES - 1)
    used = [b for b in range(BATCHES) if (batch == b).any()]
    if len(used) < _FEWEST_BATCHES:
        return None
    at = np.array([x[batch == b].mean() for b in used])
    means = np.array([y[batch == b].mean() for b in used])
    off = at - at.mean()
    slope = float((off * (means - means.mean())).sum() / (off**2).sum())
    residual = means - means.mean() - slope * off
    freedom = len(used) - 2
    error = math.sqrt(float((residual**2).sum()) / freedom / float((off**2).sum()))
    mean = float(means.mean())
    growth = slope * window_s / mean if mean else 0.0
    significant = slope > _T99[freedom] * error
    return Trend(mean, slope, growth, significant and growth >= RELEVANT_GROWTH)
