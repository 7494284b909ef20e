"""The shared segment priority (paper, eq. 9): one number from three counts.

How the counts are kept is the counters' business.
"""

from __future__ import annotations

from typing import NamedTuple

from prism_ray.qas.params import QasParams

_NEXT_DIGIT = float(2**21)
_ACTIVE_DIGIT = float(2**32)


class Weights(NamedTuple):
    """Weights of eq. 9: P(r; B) = active * A(r) + next * N(r; B) + queued * G(r)."""

    active: float
    next: float
    queued: float

    @classmethod
    def of(cls, params: QasParams) -> Weights:
        """The paper's weights, or digits that make the sum compare as the tuple (A, N, G).

        The paper calls its weights a strict hierarchy, but N = 10 outweighs A = 1. The
        lexicographic digits hold for G < 2**21, N < 2**11 and A < 2**21, and every sum stays exact
        in a float.
        """
        if params.priority == "lexicographic":
            return cls(_ACTIVE_DIGIT, _NEXT_DIGIT, 1.0)
        return cls(float(params.w_active), float(params.w_next), float(params.w_global))

    def priority(self, active: int, next_: int, queued: int) -> float:
        """P(r; B) of eq. 9; with ``next_`` = 0 it is P(r; ∅)."""
        return self.active * active + self.next * next_ + self.queued * queued
