from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from prism_ray.tenancy import QueueLimits, TenantQueues

LIMITS = QueueLimits(requests=8, tokens=100)


def queues(cap: QueueLimits = LIMITS, **weights: float) -> TenantQueues:
    return TenantQueues(LIMITS, cap, lambda tenant: weights.get(tenant.decode(), 1.0))


def fill(books: TenantQueues, tenant: bytes, tokens: int = 1) -> int:
    """Enter requests until one is refused; how many entered."""
    entered = 0
    while not books.must_leave(tenant, tokens):
        books.enter(tenant, tokens)
        entered += 1
    return entered


def test_a_tenant_alone_has_the_whole_window() -> None:
    assert fill(queues(), b"a") == 8
    assert fill(queues(), b"a", tokens=30) == 3


def test_a_tenants_own_cap_holds_also_when_it_is_alone() -> None:
    assert fill(queues(QueueLimits(3, 100)), b"a") == 3
    assert fill(queues(QueueLimits(8, 40)), b"a", tokens=20) == 2


def test_a_full_window_refuses_only_those_beyond_their_share() -> None:
    books = queues()
    assert fill(books, b"a") == 8
    assert fill(books, b"b") == 4
    assert books.must_leave(b"a", 1) == 2 * 5
    for _ in range(5):
        books.leave(b"a", 1)
    assert not books.must_leave(b"a", 1)


def test_shares_of_a_full_window_follow_the_weights() -> None:
    books = queues(b=3.0)
    fill(books, b"a")
    assert fill(books, b"b") == 6


def test_tokens_are_shared_as_requests_are() -> None:
    books = queues()
    assert fill(books, b"a", tokens=25) == 4
    assert fill(books, b"b", tokens=25) == 2


def test_an_empty_queue_takes_any_prompt() -> None:
    books = queues()
    fill(books, b"a", tokens=30)
    assert not books.must_leave(b"b", 1_000)
    books.enter(b"b", 1_000)
    assert books.must_leave(b"b", 10) == 2


def test_departures_are_counted_as_one_tenants_alone_would_need_them() -> None:
    books = queues()
    for _ in range(3):
        books.enter(b"a", 30)
    assert books.must_leave(b"a", 50) == 2
    assert books.must_leave(b"a", 10) == 0


def test_an_emptied_tenant_is_forgotten() -> None:
    books = queues()
    books.enter(b"a", 5)
    books.leave(b"a", 5)
    assert len(books) == 0
    assert (books.requests, books.tokens) == (0, 0)
    books.check_integrity()


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(0, 40))))
def test_all_together_hold_no_more_than_their_shares_add_up_to(
    arrivals: list[tuple[bytes, int]],
) -> None:
    books = queues()
    held: Counter[bytes] = Counter()
    for tenant, tokens in arrivals:
        if not books.must_leave(tenant, tokens):
            books.enter(tenant, tokens)
            held[tenant] += 1
        books.check_integrity()
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert books.requests == sum(held.values()) <= harmonic * LIMITS.requests
    assert books.tokens <= harmonic * LIMITS.tokens + 4 * 40
