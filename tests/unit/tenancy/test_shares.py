from __future__ import annotations

import pytest

from prism_ray.tenancy.shares import FairShares


def shares(*waiting: str, **weights: float) -> FairShares:
    made = FairShares({name.encode(): weight for name, weight in weights.items()})
    for name in waiting:
        made.enter(name.encode())
    return made


def serve(made: FairShares, waiting: str, tokens: dict[str, int], times: int) -> str:
    """Serve whose turn it is, so many times; the order as letters."""
    order = ""
    for _ in range(times):
        tenant = min(made.turn(name.encode()) for name in waiting)[2]
        made.charge(tenant, tokens[tenant.decode()])
        made.check_integrity({name.encode() for name in waiting})
        order += tenant.decode()
    return order


def test_equal_tenants_take_turns() -> None:
    assert serve(shares("a", "b"), "ab", {"a": 10, "b": 10}, 6) == "ababab"


def test_large_requests_come_less_often() -> None:
    order = serve(shares("a", "b"), "ab", {"a": 30, "b": 10}, 40)
    assert (order.count("a"), order.count("b")) == (10, 30)


def test_weights_are_shares() -> None:
    order = serve(shares("a", "b", a=3.0), "ab", {"a": 10, "b": 10}, 40)
    assert (order.count("a"), order.count("b")) == (30, 10)


def test_a_newcomer_goes_next_and_pays_for_nothing_that_was_before() -> None:
    made = shares("a", "b")
    serve(made, "ab", {"a": 10, "b": 10}, 100)
    made.enter(b"c")
    assert serve(made, "abc", {"a": 10, "b": 10, "c": 10}, 6)[0] == "c"
    assert serve(made, "abc", {"a": 10, "b": 10, "c": 10}, 30).count("c") == 10


def test_time_spent_idle_saves_nothing() -> None:
    made = shares("a", "b")
    made.leave(b"b")
    serve(made, "a", {"a": 10}, 50)
    made.enter(b"b")
    assert serve(made, "ab", {"a": 10, "b": 10}, 20).count("b") == 10


def test_leaving_and_coming_back_is_no_way_to_get_more() -> None:
    made = shares("a", "b")
    served = {"a": 0, "b": 0}
    for _ in range(60):  # b always has one request of 30 waiting, and its queue empties every time
        name = min(made.turn(n) for n in (b"a", b"b"))[2]
        tokens = 10 if name == b"a" else 30
        made.charge(name, tokens)
        served[name.decode()] += tokens
        if name == b"b":
            made.leave(name)
            made.enter(name)
    assert abs(served["a"] - served["b"]) <= 30


def test_who_left_is_forgotten_once_the_others_have_caught_up() -> None:
    made = shares("a", "b")
    made.charge(b"b", 30)
    made.leave(b"b")
    assert made.contested
    serve(made, "a", {"a": 10}, 4)
    made.settle()
    assert not made.contested


def test_nothing_is_remembered_when_nobody_waits() -> None:
    made = shares("a", "b")
    made.charge(b"a", 1000)
    made.leave(b"a")
    made.leave(b"b")
    assert made.floor == 0.0
    made.enter(b"a")
    made.enter(b"b")
    assert made.turn(b"a")[:2] == made.turn(b"b")[:2]
    made.check_integrity({b"a", b"b"})


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf")])
def test_weights_are_finite_and_above_zero(weight: float) -> None:
    with pytest.raises(ValueError, match="weights"):
        shares(a=weight)
