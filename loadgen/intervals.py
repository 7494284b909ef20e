"""95% intervals of the mean of a few independent values (Student's t). No runs here."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean, stdev

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t at 0.975 for 1 … 30 degrees of freedom."""
_NORMAL_975 = 1.960


def half_width(values: Sequence[float]) -> float:
    """Half the width of the mean's 95% interval; infinite for fewer than two values."""
    freedom = len(values) - 1
    if freedom < 1:
        return inf
    # Beyond the table the first term of t's expansion in 1 / freedom is right to 0.004.
    t = _T_975[freedom - 1] if freedom <= len(_T_975) else _NORMAL_975 * (1 + 1.2 / freedom)
    return t * stdev(values) / sqrt(len(values))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and ``half_width``, of paired differences say; 0 and 0 for no values."""
    return (fmean(values), half_width(values)) if values else (0.0, 0.0)
