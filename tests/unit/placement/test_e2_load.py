"""E2's load counts every request once, whatever becomes of it and however long it waits."""

from __future__ import annotations

import pytest

from prism_ray.model import NO_GAP, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement.e2 import E2

ROOM = ReplicaCapacity(pool_tokens=100_000, max_running=64, prefill_ahead_tokens=8_192)


def ticket(name: str, *documents: str) -> Ticket:
    segments = tuple(Segment(document.encode(), 400) for document in documents)
    return Ticket(name, Skeleton(None, segments, (NO_GAP,) * len(segments), 10), 0.0)


@pytest.mark.parametrize("uses_max", [2, 262_144])
def test_what_is_rewritten_after_its_use_expired_counts_again_and_only_once(uses_max: int) -> None:
    """It waited longer than H, or so many came after it that its use was forgotten early."""
    e2 = E2({"prefill_tokens_per_s": 1_000, "uses_max": uses_max})
    e2.join("a", ROOM, None, 0.0)
    late = ticket("late", "x", "y")
    path = late.skeleton.path((0, 1))
    e2.place(late, path, 0.0)
    now_s = 200.0 if uses_max > 2 else 1.0
    for n in range(3):
        e2.place(ticket(f"other {n}", f"doc {n}"), (), now_s)
    e2.sent("late", path[::-1], 0, now_s)
    e2.check_integrity()
    book = e2.rule.books[0]
    assert book.load_s > 0
    e2.place(ticket("last"), (), now_s + 181.0)
    e2.check_integrity()
    assert (book.loads, book.load_s) == (1, pytest.approx(0.01))
