"""The knee of a setting: the highest rate at which the best peer still keeps up. Writes no file.

"Keeps up": it answers at least 97% of the arrivals while requests still arrive; rates are on a grid
of 5% steps (architecture, section 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadgen.simulate import Run, SimSpec, run
from loadgen.simulate.report import answered_share
from loadgen.sweep.arms import Arm
from loadgen.traces import Trace, make_trace
from prism_ray.scheduling import POLICIES

KNEE_SHARE = 0.97
GRID_STEP = 1.05
LOOK_AHEAD_STEPS = 1
"""Steps above the first failure that are tried too: chance can fail a rate below the knee."""
OUR_OWN = ("qas", "prism")
_STRIDE = 2
_LOWEST = 200
_FLOOD_QPS = 1e6
_DOUBT_REQUESTS = 61
"""Three standard deviations of how many requests are unanswered as a replay ends, near the knee."""

Share = Callable[[Arm, float], float]


@dataclass(frozen=True)
class Knee:
    """``qps`` is the knee, ``arm`` who reaches it, ``shares`` what each arm answered there."""

    qps: float
    arm: str
    shares: dict[str, float]


def grid_rate(step: int) -> float:
    """Requests/s of a grid point: 1.05 to the power of ``step``."""
    return float(GRID_STEP**step)


def peers() -> list[Arm]:
    """Every registered policy that is not our own, with its own retention and defaults."""
    return [Arm(name, {"policy": name}) for name in POLICIES if name not in OUR_OWN]


def find_knee(base: SimSpec, arms: Sequence[Arm], seeds: Sequence[int]) -> Knee:
    """The largest grid rate at which the mean over ``seeds`` of the best arm's share is ≥ 97%.

    Seeds are run one by one until the mean is further from 97% than chance would have it. Raises
    ValueError without arms or seeds, or if none of the arms keeps up at any rate.
    """
    if not arms or not seeds:
        raise ValueError("a knee needs at least one arm and one seed")
    traces: dict[int, Trace] = {}

    def finished(arm: Arm, qps: float, seed: int) -> Run:
        if seed not in traces:
            traces[seed] = make_trace(base.trace, seed, base.requests, **base.trace_options)
        return run(replace(arm.spec(base), qps=qps, seed=seed), traces[seed])

    def share(arm: Arm, qps: float) -> float:
        def of_seed(seed: int) -> float:
            return answered_share(finished(arm, qps, seed).served)

        return mean_share(of_seed, seeds, doubt=_DOUBT_REQUESTS / base.requests)

    flood = finished(arms[0], _FLOOD_QPS, seeds[0])
    # Refused requests arrive, too: rates are of all arrivals, shares of those that were let in.
    guess_qps = len(flood.trace.requests) / max(s.finished_s or 0.0 for s in flood.served)
    return search(arms, share, start=math.floor(math.log(guess_qps, GRID_STEP)))


def mean_share(share: Callable[[int], float], seeds: Sequence[int], doubt: float) -> float:
    """Mean over the first so many seeds that leave no doubt on which side of 97% it is, or over all.

    ``doubt``: how far from the truth a single seed's share may be.
    """
    total = 0.0
    for count, seed in enumerate(seeds, start=1):
        total += share(seed)
        if abs(total / count - KNEE_SHARE) > doubt / math.sqrt(count):
            return total / count
    return total / len(seeds)


def search(arms: Sequence[Arm], share: Share, start: int = 0) -> Knee:
    """The knee of ``arms`` where ``share`` says what an arm answers at a rate.

    The first arm's own knee by bisection around the grid point ``start``, then each other arm only
    where it would raise it.
    """
    memory: dict[tuple[str, int], float] = {}

    def keeps_up(arm: Arm, step: int) -> bool:
        key = (arm.name, step)
        if key not in memory:
            memory[key] = share(arm, grid_rate(step))
        return memory[key] >= KNEE_SHARE

    best: int | None = None
    holder = arms[0]
    for arm in arms:
        step = _bisect(arm, keeps_up, start) if best is None else best
        if step is None:
            continue
        step = _climb(arm, step, keeps_up)
        if best is None or step > best:
            best, holder = step, arm
    if best is None:
        raise ValueError("no arm keeps up at any rate")
    shares = {name: value for (name, step), value in memory.items() if step == best}
    return Knee(grid_rate(best), holder.name, shares)


def _bisect(arm: Arm, keeps_up: Callable[[Arm, int], bool], start: int) -> int | None:
    """A step that the arm passes while it fails the next; None if it fails everywhere."""
    low, stride = start, _STRIDE
    while not keeps_up(arm, low):
        low -= stride
        stride *= 2
        if low < start - _LOWEST:
            return None
    high, stride = low + _STRIDE, _STRIDE
    while keeps_up(arm, high):
        low, high = high, high + stride
        stride *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if keeps_up(arm, middle):
            low = middle
        else:
            high = middle
    return low


def _climb(arm: Arm, best: int, keeps_up: Callable[[Arm, int], bool]) -> int:
    """The highest step that the arm passes above ``best``, looking past failures; else ``best``."""
    step = best + 1
    while step - best <= LOOK_AHEAD_STEPS + 1:
        if keeps_up(arm, step):
            best = step
        step += 1
    return best
