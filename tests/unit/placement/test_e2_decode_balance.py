"""A replica that mostly decodes gets what is explored, of two replicas as of many."""

from __future__ import annotations

import pytest

from prism_ray.model import NO_GAP, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement.e2 import E2

ROOM = ReplicaCapacity(pool_tokens=100_000, max_running=64, prefill_ahead_tokens=8_192)


@pytest.mark.parametrize(
    ("shares", "decodes"),
    [
        ((0.1, 0.9), True),
        ((0.41, 0.2), True),
        ((0.4, 0.2), False),
        ((0.0, 0.1), True),
        ((0.0, 0.0), False),
        ((0.2, 0.9, 0.2), True),
        ((0.4, 0.9, 0.4), False),
        ((0.9,), False),
    ],
)
def test_it_has_more_than_twice_the_share_of_decoding(
    shares: tuple[float, ...], decodes: bool
) -> None:
    e2 = E2({"prefill_tokens_per_s": 1_000})
    for n, share in enumerate(shares):
        e2.join(f"r{n}", ROOM, None, 0.0)
        book = e2.rule.books[n]
        # The one that decodes most has most load, so that by load it would get nothing.
        book.load_s = 100.0 if share == max(shares) else 10.0
        book.decode_s = share * book.load_s
    skeleton = Skeleton(None, (Segment(b"new", 100),), (NO_GAP,), 10)
    choice = e2.place(Ticket("q", skeleton, 0.0), skeleton.path((0,)), 0.0)
    most = f"r{shares.index(max(shares))}"
    assert (choice.kind == "decode") == decodes
    assert choice.replica == most or not decodes
