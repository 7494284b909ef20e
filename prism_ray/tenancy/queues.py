"""How much each tenant may let wait: queue caps and the books behind them. Orders nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import NamedTuple


class QueueLimits(NamedTuple):
    """Bounds on what waits: requests, and their prompt tokens."""

    requests: int
    tokens: int


class TenantQueues:
    """What waits, by tenant.

    A tenant's queue is full at its own cap. The whole window may be full too, and then those that
    hold more than their share of it (by weight, among tenants that wait) are refused and nobody
    else: one tenant's backlog never closes the door to another. So n tenants together hold at most
    1 + 1/2 + ... + 1/n times the limits (equal weights), and a prompt each. A tenant alone has the
    whole window.
    """

    def __init__(
        self, limits: QueueLimits, cap: QueueLimits, weight: Callable[[bytes], float]
    ) -> None:
        """``cap`` bounds each tenant, ``limits`` all together; both may be set anew later."""
        self.limits = limits
        self.cap = cap
        self._weight = weight
        self._requests: Counter[bytes] = Counter()
        self._tokens: Counter[bytes] = Counter()
        self.requests = 0
        self.tokens = 0

    def __len__(self) -> int:
        """Tenants that have something waiting."""
        return len(self._requests)

    def must_leave(self, tenant: bytes, tokens: int) -> int:
        """Departures until the tenant may add a request of so many prompt tokens; 0: it may now.

        Counts departures of all tenants, of which this one's are as many as its share. An empty
        queue takes any prompt: one that is larger than the limit would never get in.
        """
        held = QueueLimits(self._requests[tenant], self._tokens[tenant])
        after = QueueLimits(self.requests + 1, self.tokens + tokens)
        if after.requests <= min(self.limits.requests, self.cap.requests) and (
            after.tokens <= min(self.limits.tokens, self.cap.tokens)
        ):
            return 0  # whatever the others have
        share = self._share(tenant)
        allowed_requests, allowed_tokens = float(self.cap.requests), float(self.cap.tokens)
        if after.requests > self.limits.requests:
            allowed_requests = min(allowed_requests, share * self.limits.requests)
        if after.tokens > self.limits.tokens:
            allowed_tokens = min(allowed_tokens, share * self.limits.tokens)
        excess = ceil(held.requests + 1 - allowed_requests)
        if held.requests:
            mean_tokens = max(1, held.tokens // held.requests)
            excess = max(excess, ceil((held.tokens + tokens - allowed_tokens) / mean_tokens))
        return ceil(excess / share) if excess > 0 else 0

    def enter(self, tenant: bytes, tokens: int) -> None:
        self._requests[tenant] += 1
        self._tokens[tenant] += tokens
        self.requests += 1
        self.tokens += tokens

    def leave(self, tenant: bytes, tokens: int) -> None:
        """The reverse of ``enter``; a tenant of which nothing waits is forgotten."""
        self._requests[tenant] -= 1
        self._tokens[tenant] -= tokens
        self.requests -= 1
        self.tokens -= tokens
        if not self._requests[tenant]:
            del self._requests[tenant], self._tokens[tenant]

    def _share(self, tenant: bytes) -> float:
        """The tenant's part of everything, among those that wait."""
        others = sum(self._weight(other) for other in self._requests if other != tenant)
        own = self._weight(tenant)
        return own / (own + others)

    def check_integrity(self) -> None:
        """AssertionError unless the totals are the sums."""
        assert self.requests == sum(self._requests.values())
        assert self.tokens == sum(self._tokens.values())
        assert self._requests.keys() == self._tokens.keys()
        assert all(count > 0 for count in self._requests.values())
