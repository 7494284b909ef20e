"""Hot and cold lane: which of a replica's dispatches takes the oldest request (choices A6, A7).

Only counts dispatches; which request is oldest or hottest is the plan's business.
"""

from __future__ import annotations

from prism_ray.model import Lane
from prism_ray.qas.params import QasParams


class Lanes:
    """The lane of each dispatch to one replica.

    ``rate`` numbers a replica's dispatches over its life: in any ``batch_max`` consecutive ones
    exactly ``q_cold`` are cold, spread evenly, however small the credit of a round. ``per_round``
    starts anew in each round, hot first and the last ``q_cold`` of a full batch cold: with credit for
    a few at a time nothing is ever cold.
    """

    def __init__(self, params: QasParams) -> None:
        cold, batch = params.q_cold, params.batch_max
        self._per_round = params.lanes == "per_round"
        if self._per_round:
            is_cold = [number >= batch - cold for number in range(batch)]
        else:
            is_cold = [(n + 1) * cold // batch > n * cold // batch for n in range(batch)]
        self._pattern = [Lane.COLD if is_cold_slot else Lane.HOT for is_cold_slot in is_cold]

    def first(self, dispatched: int) -> int:
        """Number of a round's first dispatch to a replica that got ``dispatched`` before."""
        return 0 if self._per_round else dispatched

    def lane(self, number: int) -> Lane:
        """Lane of dispatch ``number`` (counted from 0); it repeats every ``batch_max``."""
        return self._pattern[number % len(self._pattern)]

    @property
    def period(self) -> int:
        """B_max: dispatches after which the lanes repeat."""
        return len(self._pattern)

    def following(self, number: int) -> list[Lane]:
        """Lanes of the ``batch_max`` dispatches after those up to ``number`` (not included)."""
        start = self.first(number) % len(self._pattern)
        return self._pattern[start:] + self._pattern[:start]
