"""How many bytes of bodies one ingress holds while their tickets wait. Holds none of them itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from prism_ray.serving.drain_rate import DrainRate
from prism_ray.serving.errors import queue_full

REFUSED_S = 10.0
"""A tenant that was refused wants room for this long: then those above their share get none."""


class HeldBytes:
    """A bounded sum, shared by tenants. What was taken must be given back, once.

    One tenant may have all the room while nobody else wants any. Once another was refused, no tenant
    takes more than its share (by weight, of those that hold bytes or were refused lately) until there
    is room for all: what it holds above that only drains.
    """

    def __init__(
        self,
        limit_bytes: int,
        weight: Callable[[str], float] = lambda tenant: 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._weight = weight
        self._clock = clock
        self._drain = DrainRate()
        self._of: Counter[str] = Counter()
        self._refused_s: dict[str, float] = {}
        self.bytes = 0

    def retune(self, limit_bytes: int) -> None:
        """What is held already stays, however much it is."""
        self._limit_bytes = limit_bytes

    def of_tenants(self) -> Mapping[str, int]:
        """Bytes held for each tenant that holds any."""
        return dict(self._of)

    def take(self, size_bytes: int, tenant: str = "") -> None:
        """ApiError 429, with the time until there is room, if it would be too much."""
        now = self._clock()
        excess = self.bytes + size_bytes - self._limit_bytes
        if self._others_want(tenant, now):
            excess = max(excess, self._of[tenant] + size_bytes - self._share(tenant))
        if excess > 0:
            self._refused_s[tenant] = now
            raise queue_full(self._drain.seconds_for(excess, now))
        self._refused_s.pop(tenant, None)
        self._of[tenant] += size_bytes
        self.bytes += size_bytes

    def give_back(self, size_bytes: int, tenant: str = "") -> None:
        self.bytes -= size_bytes
        self._of[tenant] -= size_bytes
        if not self._of[tenant]:
            del self._of[tenant]
        if self.bytes:  # only while others wait does a departure say how fast they leave
            self._drain.add(size_bytes, self._clock())

    def _others_want(self, tenant: str, now_s: float) -> bool:
        for name, at_s in list(self._refused_s.items()):
            if now_s - at_s >= REFUSED_S:
                del self._refused_s[name]
        return any(name != tenant for name in self._refused_s)

    def _share(self, tenant: str) -> int:
        about = self._of.keys() | self._refused_s.keys() | {tenant}
        return int(self._limit_bytes * self._weight(tenant) / sum(map(self._weight, about)))
