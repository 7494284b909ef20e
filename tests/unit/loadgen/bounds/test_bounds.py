from __future__ import annotations

import random
from itertools import permutations

import pytest

from loadgen.bounds import Prompt, b0, b1, b2, b3, b4
from prism_ray.model import Atom

from .brute_force import (
    hits_finite,
    hits_infinite,
    orders_within,
    rewritten,
    tokens_of,
    total,
)

INFINITE = 10**9


def atom(name: str, tokens: int = 1) -> Atom:
    return Atom(name.encode(), tokens)


LENGTHS = {"a": 2, "b": 1, "c": 3, "d": 1}


def drawn(rng: random.Random, count: int, slots: int, lengths: dict[str, int]) -> list[Prompt]:
    """Prompts: a system prefix, distinct documents, one private token; ascending arrivals."""
    arrival_s, prompts = 0.0, []
    for number in range(count):
        documents = rng.sample(sorted(lengths), rng.randint(1, slots))
        path = (atom("s"), *(atom(d, lengths[d]) for d in documents), atom(f"p{number}"))
        prompts.append(Prompt(path, arrival_s))
        arrival_s += rng.choice([0.0, 1.0, 2.0])
    return prompts


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("page", [1, 2, 3])
def test_b0_is_what_an_infinite_pool_hits_in_any_order(seed: int, page: int) -> None:
    prompts = drawn(random.Random(seed), 5, 4, LENGTHS)
    texts = [(tokens_of(p.path), ()) for p in prompts]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        hits = hits_infinite([texts[n] for n in order], page)
        assert b0(prompts, page) * total(prompts) == pytest.approx(hits)


def test_what_was_generated_is_hit_without_having_been_asked() -> None:
    first = Prompt((atom("s", 4), atom("q", 3)), 0.0, (atom("answer", 5),))
    second = Prompt((*first.path, *first.output, atom("next", 2)), 1.0)
    texts = [(tokens_of(p.path), tokens_of(p.output)) for p in (first, second)]
    assert hits_infinite(texts) == 12
    assert b0([first, second]) * 21 == pytest.approx(12)
    assert b1([first, second]) * 21 == pytest.approx(12)
    assert b3([first, second], INFINITE, 0.0) * 21 == pytest.approx(12)


def test_the_last_token_of_a_prompt_is_never_hit() -> None:
    prompts = [Prompt((atom("s", 4), atom("d", 4)), float(n)) for n in range(3)]
    assert b0(prompts) * 24 == pytest.approx(2 * 7)
    assert b0(prompts, page_size=4) * 24 == pytest.approx(2 * 4)
    assert b1(prompts) * 24 == pytest.approx(2 * 7)
    longer = [*prompts, Prompt((*prompts[0].path, atom("more", 4)), 3.0)]
    assert b0(longer, page_size=4) * 36 >= 2 * 4 + 8


@pytest.mark.parametrize("seed", range(12))
def test_b1_holds_for_every_order_of_requests_and_segments(seed: int) -> None:
    prompts = drawn(random.Random(seed), 4, 3, LENGTHS)
    best = max(
        hits_infinite([(tokens_of(paths[n]), ()) for n in order])
        for paths in rewritten([p.path for p in prompts])
        for order in [(0, 1, 2, 3), (3, 1, 0, 2)]
    )
    bound = b1(prompts)
    assert bound is not None
    assert b0(prompts) <= bound
    assert best <= bound * total(prompts) + 1e-9


def test_b1_is_reached_by_a_chain_of_sets_that_grow() -> None:
    names = ["a", "ab", "abc"]
    prompts = [
        Prompt((atom("s"), *(atom(d, LENGTHS[d]) for d in reversed(n)), atom(f"p{n}")))
        for n in names
    ]
    # s a | s a b | s a b c: the second finds 3 tokens, the third 4.
    assert b1(prompts) == pytest.approx((3 + 4) / total(prompts))
    assert b1(prompts, page_size=2) == pytest.approx((2 + 4) / total(prompts))


def test_b1_is_b0_where_nothing_may_move_and_left_out_where_it_would_take_too_long() -> None:
    prompts = drawn(random.Random(1), 5, 4, LENGTHS)
    assert b1(prompts, movable=False) == b0(prompts)
    assert b1(prompts * 1001) is None


@pytest.mark.parametrize("seed", range(40))
def test_b2_is_the_best_eviction_of_a_fixed_order(seed: int) -> None:
    rng = random.Random(seed)
    prompts = drawn(rng, 5, 3, {"a": 1, "b": 1, "c": 1, "d": 1})
    capacity = rng.randint(5, 9)
    best = hits_finite([tokens_of(p.path) for p in prompts], capacity)
    assert b2(prompts, capacity) * total(prompts) == pytest.approx(best)


def test_b2_refuses_a_prompt_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="fit"):
        b2([Prompt((atom("a", 5),)), Prompt((atom("b", 3),))], 4)


@pytest.mark.parametrize("seed", range(24))
def test_b3_holds_for_every_order_within_the_wait(seed: int) -> None:
    rng = random.Random(seed)
    prompts = drawn(rng, 5, 3, {"a": 1, "b": 1, "c": 1, "d": 1})
    capacity, wait = rng.randint(5, 8), rng.choice([0.0, 1.0, 2.0, 4.0])
    texts = [tokens_of(p.path) for p in prompts]
    arrivals = [p.arrival_s for p in prompts]
    best = max(
        hits_finite([texts[n] for n in order], capacity) for order in orders_within(arrivals, wait)
    )
    assert best <= b3(prompts, capacity, wait) * total(prompts) + 1e-9


def test_b3_is_b0_for_ever_and_falls_with_pool_and_patience() -> None:
    prompts = drawn(random.Random(7), 40, 4, LENGTHS)
    assert b3(prompts, 1, float("inf")) == pytest.approx(b0(prompts))
    assert b3(prompts, INFINITE, 0.0) == pytest.approx(b0(prompts))
    by_pool = [b3(prompts, pool, 1.0) for pool in (1, 3, 5, 8, 12, 20)]
    by_wait = [b3(prompts, 5, wait) for wait in (0.0, 0.5, 1.5, 3.0, 9.0)]
    assert by_pool == sorted(by_pool)
    assert by_wait == sorted(by_wait)
    assert by_pool[0] < by_pool[-1]
    assert by_wait[0] < by_wait[-1]


@pytest.mark.parametrize("seed", range(30))
def test_b3_without_patience_is_b2_where_own_prompts_are_no_burden(seed: int) -> None:
    """Arrivals apart; B2 also needs room for the prompt that is served, so B3 is above or equal."""
    prompts = [
        p._replace(arrival_s=float(n))
        for n, p in enumerate(drawn(random.Random(seed), 8, 3, LENGTHS))
    ]
    for capacity in (9, 12, 40):
        assert b2(prompts, capacity) <= b3(prompts, capacity, 0.0) + 1e-9
    assert b2(prompts, 1000) == pytest.approx(b3(prompts, 1000, 0.0))


def test_replicas_each_compute_what_all_prompts_start_with() -> None:
    prompts = [Prompt((atom("s", 10), atom(f"p{n}", 2)), float(n)) for n in range(6)]
    assert b3(prompts, INFINITE, 0.0) * 72 == pytest.approx(50)
    assert b3(prompts, INFINITE, 0.0, replicas=3) * 72 == pytest.approx(30)
    assert b3(prompts, INFINITE, 0.0, replicas=3, working=2) * 72 == pytest.approx(40)
    assert b3(prompts, INFINITE, 0.0, replicas=3, working=1) * 72 == pytest.approx(50)


@pytest.mark.parametrize("seed", range(10))
def test_b4_holds_for_every_order_of_requests_and_segments_in_a_finite_pool(seed: int) -> None:
    rng = random.Random(seed)
    prompts = drawn(rng, 3, 3, {"a": 1, "b": 1, "c": 1})
    capacity, wait = rng.randint(5, 7), rng.choice([0.0, 2.0])
    arrivals = [p.arrival_s for p in prompts]
    best = max(
        hits_finite([tokens_of(paths[n]) for n in order], capacity)
        for paths in rewritten([p.path for p in prompts])
        for order in orders_within(arrivals, wait)
    )
    bound = b4(prompts, capacity, wait)
    assert best <= bound * total(prompts) + 1e-9
    assert bound <= (b1(prompts) or 1.0)


def test_an_atom_of_two_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 tokens here, 3 there"):
        b0([Prompt((atom("a", 2),)), Prompt((atom("a", 3),))])


def test_order_of_requests_does_not_change_b0() -> None:
    prompts = drawn(random.Random(3), 5, 4, LENGTHS)
    assert len({b0(order) for order in permutations(prompts)}) == 1
