"""What E2 does not remember any more is no sign of a lighter load."""

from __future__ import annotations

import pytest

from prism_ray.model import NO_GAP, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement.e2 import E2

ROOM = ReplicaCapacity(pool_tokens=100_000, max_running=64, prefill_ahead_tokens=8_192)
RATE = 10.0


def after(seconds: float, rates: tuple[float, ...] = (RATE,), **params: object) -> E2:
    """Two replicas through which every request of one document went, at each rate for so long."""
    e2 = E2({"prefill_tokens_per_s": 1_000, "replicate": False, "spill": False, **params})
    for replica in "ab":
        e2.join(replica, ROOM, None, 0.0)
    skeleton = Skeleton(None, (Segment(b"doc", 900),), (NO_GAP,), 100)
    path = skeleton.path((0,))
    number, now_s = 0, 0.0
    for rate in rates:
        for _ in range(int(seconds * rate)):
            number += 1
            now_s += 1 / rate
            name = f"q{number}"
            e2.place(Ticket(name, skeleton, now_s), path, now_s)
            e2.sent(name, path, 0, now_s)
            e2.prefilled(name, now_s)
            e2.released(name, 1, now_s)
    e2.check_integrity()
    return e2


@pytest.mark.parametrize("uses_max", [150, 300, 1_000, 262_144])
def test_load_and_what_a_prefix_keeps_busy_do_not_depend_on_how_much_is_remembered(
    uses_max: int,
) -> None:
    e2, whole = (after(400.0, uses_max=most) for most in (uses_max, 262_144))
    now_s = 400.0

    def loads(each: E2) -> list[float]:
        return each.terms.loads_s(each.rule.books, now_s)

    assert sum(loads(e2)) == pytest.approx(sum(loads(whole)), rel=0.05)
    nodes = [next(iter(each.forest.walk())) for each in (e2, whole)]
    busy = [each.rule._kept_busy(n, now_s) for each, n in zip((e2, whole), nodes, strict=True)]
    assert busy[0] == busy[1] > 1


def test_once_there_are_fewer_the_window_is_whole_again() -> None:
    e2 = after(200.0, (RATE, 1.0), uses_max=500)
    assert e2.terms.forgotten_s < 400.0 - 180.0
    assert sum(e2.terms.loads_s(e2.rule.books, 400.0)) == pytest.approx(
        sum(book.load_s for book in e2.rule.books)
    )
