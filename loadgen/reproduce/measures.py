"""From a claim and the runs to figures with 95% intervals, paired by seed. Judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from loadgen.reproduce.claims import Claim, Reading
from loadgen.reproduce.kept import figure
from loadgen.reproduce.results import Results
from loadgen.sweep.intervals import Interval, mean_interval

HIGHER_IS_BETTER = ("hit_rate", "hit_rate_nonglobal", "throughput_rps", "efficiency")
BOUNDS = {"hit_rate": "bounds.b3", "ttft_s.p99": "ttft_p99_least_s"}
"""What no policy could pass, for metrics that have such a thing."""


@dataclass(frozen=True)
class Figure:
    """One figure under one reading; ``qps`` None: the mean over all rates.

    ``bound`` is the same figure with the arm at its bound; ``over_bound`` the arm's P99 over the
    least possible. ``other`` is who the arm was compared with. ``of_all_rates``: every rate of the
    reading ran.
    """

    metric: str
    qps: float | None
    value: Interval
    seeds: tuple[int, ...]
    bound: float | None = None
    over_bound: float | None = None
    other: str | None = None
    of_all_rates: bool = True


def figures(claim: Claim, reading: Reading, results: Results) -> list[Figure]:
    """One for each metric, and for each rate where the claim is about each. Empty: nothing ran.

    Only rates that ran, and seeds that everybody has. Raises Incomparable, UnknownKnee.
    """
    found: list[Figure] = []
    for metric in claim.metrics:
        whole = _Measure(claim, reading, metric, results)
        if not whole.seeds:
            return []
        if not claim.each:
            found.append(whole.over(whole.rates, None))
        if claim.each or claim.bound_ratio is not None:
            found += [whole.over([qps], qps) for qps in whole.rates]
    return found


class _Measure:
    def __init__(self, claim: Claim, reading: Reading, metric: str, results: Results) -> None:
        self._claim, self._reading, self._metric = claim, reading, metric
        self._results = results
        self._arm = claim.arm_of(reading)
        self._theirs = reading.other_setting or reading.setting
        self.rates = [qps for qps in reading.qps() if self._seeds_at(qps)]
        common = [set(self._seeds_at(qps)) for qps in self.rates]
        self.seeds = sorted(set.intersection(*common)) if common else []

    def _seeds_at(self, qps: float) -> list[int]:
        """Seeds that all sides have; what is compared in one setting must have served the same."""
        claim = self._claim
        if self._theirs == self._reading.setting:
            return self._results.seeds(self._theirs, [self._arm, *claim.against], [qps])
        ours = self._results.seeds(self._reading.setting, [self._arm], [qps])
        theirs = self._results.seeds(self._theirs, claim.against, [qps])
        return sorted(set(ours) & set(theirs))

    def over(self, rates: Sequence[float], qps: float | None) -> Figure:
        others = [self._best(rate) for rate in rates] if self._claim.against else []
        values = [self._of_seed(seed, rates, others, self._metric) for seed in self.seeds]
        bound_metric = BOUNDS.get(self._metric)
        bound = over_bound = None
        if bound_metric is not None:
            at_bound = [self._of_seed(s, rates, others, bound_metric) for s in self.seeds]
            bound = fmean(at_bound)
            if self._metric == "ttft_s.p99":
                over_bound = fmean(
                    self._ours(rate, seed, self._metric) / self._ours(rate, seed, bound_metric)
                    for rate in rates
                    for seed in self.seeds
                )
        names = list(dict.fromkeys(others))
        return Figure(
            self._metric,
            qps,
            mean_interval(values),
            tuple(self.seeds),
            bound,
            over_bound,
            ", ".join(names) or None,
            len(self.rates) == len(self._reading.qps()),
        )

    def _of_seed(
        self, seed: int, rates: Sequence[float], others: Sequence[str], metric: str
    ) -> float:
        """Mean over rates; ``metric`` is the arm's, the other side's is the claim's own."""
        claim = self._claim
        ours = [self._ours(rate, seed, metric) for rate in rates]
        if claim.kind == "level":
            return fmean(ours)
        theirs = [self._other(rate, arm, seed) for rate, arm in zip(rates, others, strict=True)]
        if claim.kind == "change":
            return fmean(a / (claim.scale * b) - 1 for a, b in zip(ours, theirs, strict=True))
        return fmean(a - claim.scale * b for a, b in zip(ours, theirs, strict=True))

    def _ours(self, qps: float, seed: int, metric: str) -> float:
        return self._value(self._reading.setting, self._arm, qps, seed, metric)

    def _other(self, qps: float, arm: str, seed: int) -> float:
        return self._value(self._theirs, arm, qps, seed, self._metric)

    def _best(self, qps: float) -> str:
        """Of the arms that are compared with, by the mean over seeds at that rate."""
        by = self._claim.best_by or self._metric

        def mean(arm: str) -> float:
            return fmean(self._value(self._theirs, arm, qps, seed, by) for seed in self.seeds)

        better = max if by in HIGHER_IS_BETTER else min
        return better(self._claim.against, key=mean)

    def _value(self, setting: str, arm: str, qps: float, seed: int, metric: str) -> float:
        value = figure(self._results.at(setting, arm, qps)[seed], metric)
        if value is None:
            raise ValueError(f"{setting}, {arm}, {qps:.4g}/s, seed {seed}: no figure {metric}")
        return value
