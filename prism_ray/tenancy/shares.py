"""Whose turn it is among tenants that wait: deficit round robin over weighted tokens. Knows no requests.

Classic deficit round robin adds a quantum each time round, and a newcomer waits until others have used
theirs up. Here the quantum has shrunk to nothing: the turn always goes to the tenant that has had least
for its weight (start-time fair queueing; Goyal, Vin and Cheng, 1996). The shares are the same in the
long run, and at any moment within one request.
"""

from __future__ import annotations

from collections.abc import Mapping

Turn = tuple[float, int, bytes]
"""Sort key of a waiting tenant: its level, its last turn, its name. The least goes next."""


class FairShares:
    """Levels: tokens that each tenant was served, over its weight.

    ``floor`` is the level that the last tenant had when it was served. Who begins to wait starts
    there: time spent idle saves nothing, and what others had before costs nothing. Only who leaves
    above the floor is remembered, until the floor has come up: leaving and coming back is no way to
    get more. Once nobody waits, all is forgotten.
    """

    def __init__(self, weights: Mapping[bytes, float], default_weight: float = 1.0) -> None:
        if not all(0 < weight < float("inf") for weight in (*weights.values(), default_weight)):
            raise ValueError("weights are finite and above 0")
        self._weights = dict(weights)
        self._default_weight = default_weight
        self._waiting: dict[bytes, float] = {}
        self._ahead: dict[bytes, float] = {}
        self._last_turn: dict[bytes, int] = {}
        self._turns = 0
        self.floor = 0.0

    @property
    def contested(self) -> bool:
        """Whether what one tenant is served matters to another."""
        return len(self._waiting) + len(self._ahead) > 1

    def weight(self, tenant: bytes) -> float:
        return self._weights.get(tenant, self._default_weight)

    def enter(self, tenant: bytes) -> None:
        """The tenant begins to wait."""
        self._waiting[tenant] = max(self._ahead.pop(tenant, self.floor), self.floor)

    def leave(self, tenant: bytes) -> None:
        """Nothing of the tenant waits any more."""
        level = self._waiting.pop(tenant)
        if not self._waiting:
            self._ahead.clear()
            self._last_turn.clear()
            self.floor, self._turns = 0.0, 0
        elif level > self.floor:
            self._ahead[tenant] = level
        else:
            self._last_turn.pop(tenant, None)

    def turn(self, tenant: bytes) -> Turn:
        """Sort key of a tenant that waits; of equals goes who was served longest ago."""
        return self._waiting[tenant], self._last_turn.get(tenant, 0), tenant

    def charge(self, tenant: bytes, tokens: float) -> None:
        """The tenant was served ``tokens``."""
        level = self._waiting[tenant]
        self.floor = max(self.floor, level)
        self._waiting[tenant] = level + tokens / self.weight(tenant)
        self._turns += 1
        self._last_turn[tenant] = self._turns

    def forgo(self, tenant: bytes) -> None:
        """The tenant could not take its turn; it has no claim on what others got meanwhile."""
        self._waiting[tenant] = max(self._waiting[tenant], self.floor)

    def settle(self) -> None:
        """Forget those who left and whom the floor has reached."""
        for tenant in [t for t, level in self._ahead.items() if level <= self.floor]:
            del self._ahead[tenant]
            self._last_turn.pop(tenant, None)

    def check_integrity(self, waiting: set[bytes]) -> None:
        """AssertionError unless exactly those are known that wait or left above the floor."""
        assert set(self._waiting) == waiting
        assert not self._waiting.keys() & self._ahead.keys()
        assert self._last_turn.keys() <= self._waiting.keys() | self._ahead.keys()
        assert self._waiting or not self._ahead, "nobody waits, and somebody is remembered"
