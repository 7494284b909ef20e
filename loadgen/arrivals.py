"""When requests arrive: seconds since the start of a run, ascending. Knows no requests, no clock.

Every process takes a seeded numpy generator, so a run can be repeated arrival by arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

ArrivalProcess = Callable[[int, float, Generator], list[float]]


def poisson(count: int, rate: float, rng: Generator) -> list[float]:
    """``count`` arrivals with exponential gaps of mean 1/``rate`` seconds, the first one after a gap.

    ValueError for a rate that is not positive.
    """
    _check(count, rate)
    return [float(t) for t in np.cumsum(rng.exponential(1.0 / rate, count))]


def constant(count: int, rate: float, rng: Generator) -> list[float]:
    """One arrival every 1/``rate`` seconds, the first at zero; draws nothing."""
    _check(count, rate)
    return [i / rate for i in range(count)]


def bursts(count: int, rate: float, rng: Generator, *, mean_size: float = 8.0) -> list[float]:
    """Bursts at Poisson times: all of a burst arrive at one moment, ``rate`` is kept on average.

    Sizes are geometric with mean ``mean_size`` (at least 1), so bursts come at ``rate``/``mean_size``
    a second.
    """
    _check(count, rate)
    if mean_size < 1:
        raise ValueError(f"a burst has at least one request, not {mean_size}")
    arrivals: list[float] = []
    now_s = 0.0
    while len(arrivals) < count:
        now_s += float(rng.exponential(mean_size / rate))
        arrivals += [now_s] * int(rng.geometric(1.0 / mean_size))
    return arrivals[:count]


def ramp(count: int, rate: float, rng: Generator, *, low: float = 0.5) -> list[float]:
    """A Poisson process whose rate rises in a straight line, from ``low`` to 2 − ``low`` times ``rate``.

    Over the ``count``/``rate`` seconds in which ``count`` arrivals are expected the mean is ``rate``.
    ``low`` lies between 0 (from nothing) and 2 (to nothing); above 1 the rate falls. Later arrivals
    come at the last rate.
    """
    _check(count, rate)
    if not 0 <= low < 2:
        raise ValueError(f"a ramp starts between 0 and 2 times its rate, not at {low}")
    # Λ(t) = rate · (low·t + (1 − low)·t²/T) turns unit-rate arrivals into those of the ramp.
    unit = np.cumsum(rng.exponential(1.0, count))
    period_s = count / rate
    bend = (1.0 - low) / period_s if count else 0.0
    inside = np.minimum(unit, float(count)) / rate
    root = np.sqrt(np.maximum(low * low + 4 * bend * inside, 0.0))
    denominator = np.maximum(low + root, 1e-12)
    times = 2 * inside / denominator
    times += np.maximum(unit - count, 0.0) / (rate * max(2 - low, 1e-9))
    return [float(t) for t in times]


def recorded(times_s: Sequence[float], count: int, rate: float, rng: Generator) -> list[float]:
    """``count`` consecutive arrivals of a recording, scaled so that their mean rate is ``rate``.

    The start is drawn; a recording that is too short goes on from its own beginning. Gaps keep their
    ratios, so bursts and lulls stay. The first arrival comes after a gap, as with ``poisson``.
    ValueError for a recording of fewer than two arrivals or of no length.
    """
    _check(count, rate)
    times = np.sort(np.asarray(times_s, dtype=float))
    if len(times) < 2 or times[-1] == times[0]:
        raise ValueError("a recording needs two arrivals at different times")
    gaps = np.diff(times)
    start = int(rng.integers(len(gaps)))
    arrivals = np.cumsum(np.resize(np.roll(gaps, -start), count))
    if count and arrivals[-1] > 0:
        arrivals *= count / rate / arrivals[-1]
    return [float(t) for t in arrivals]


def azure_conv(count: int, rate: float, rng: Generator) -> list[float]:
    """Arrivals of the Azure conversation trace of 2023. DataMissing where its file is not."""
    from loadgen.traces.azure import read_azure

    return recorded([row.at_s for row in read_azure("conv")], count, rate, rng)


def azure_code(count: int, rate: float, rng: Generator) -> list[float]:
    """Arrivals of the Azure code trace of 2023: burstier. DataMissing where its file is not."""
    from loadgen.traces.azure import read_azure

    return recorded([row.at_s for row in read_azure("code")], count, rate, rng)


def mooncake(count: int, rate: float, rng: Generator) -> list[float]:
    """Arrivals of Mooncake's conversation trace. DataMissing where its file is not."""
    from loadgen.traces.mooncake import read_arrivals

    return recorded(read_arrivals(), count, rate, rng)


ARRIVALS: dict[str, ArrivalProcess] = {
    "poisson": poisson,
    "constant": constant,
    "bursts": bursts,
    "ramps": ramp,
    "azure": azure_conv,
    "azure-code": azure_code,
    "mooncake": mooncake,
}


def _check(count: int, rate: float) -> None:
    if count < 0 or not rate > 0:
        raise ValueError(f"cannot arrive {count} times at {rate} requests/s")
