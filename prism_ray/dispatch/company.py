"""Which tenants are about, and how much of each waits. Knows no replica and takes no turns."""

from __future__ import annotations

from collections import Counter, OrderedDict

from prism_ray.model import Ticket

REMEMBERED_ARRIVALS = 1024
"""A tenant of which so many arrivals brought nothing is not expected any more."""


class Company:
    """Counts of waiting tickets by tenant, and the tenants of the last arrivals.

    ``waiting_tokens``: of the prompts of all that wait.
    """

    def __init__(self) -> None:
        self._waiting: Counter[bytes] = Counter()
        self._last_arrival: OrderedDict[bytes, int] = OrderedDict()
        self._arrivals = 0
        self.waiting_tokens = 0

    def __len__(self) -> int:
        """Tenants that wait or came lately."""
        return len(self._last_arrival)

    def arrive(self, ticket: Ticket) -> None:
        self._arrivals += 1
        self._waiting[ticket.tenant] += 1
        self.waiting_tokens += ticket.skeleton.prompt_tokens
        self._came(ticket.tenant)
        while True:
            oldest, last = next(iter(self._last_arrival.items()))
            if last > self._arrivals - REMEMBERED_ARRIVALS:
                return
            if self._waiting[oldest]:
                self._came(oldest)
            else:
                del self._last_arrival[oldest]

    def leave(self, ticket: Ticket) -> None:
        """The ticket does not wait any more."""
        self.waiting_tokens -= ticket.skeleton.prompt_tokens
        self._waiting[ticket.tenant] -= 1
        if not self._waiting[ticket.tenant]:
            del self._waiting[ticket.tenant]

    def _came(self, tenant: bytes) -> None:
        self._last_arrival[tenant] = self._arrivals
        self._last_arrival.move_to_end(tenant)

    def has_backlog(self, tenant: bytes) -> bool:
        """Whether more than one of its tickets wait."""
        return self._waiting[tenant] > 1

    def leaves_others(self, tenant: bytes) -> bool:
        """Whether only others wait, and at least one of them."""
        return bool(self._waiting) and tenant not in self._waiting

    def check_integrity(self, tenants: Counter[bytes]) -> None:
        """AssertionError unless exactly these tickets wait, by tenant."""
        assert self._waiting == tenants
