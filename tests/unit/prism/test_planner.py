"""Planned orders: allowed, along what is resident, and together where that saves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.model import NO_GAP, Atom, Order, Segment, Skeleton
from prism_ray.prism.planner import Planner
from prism_ray.prism.shape import Choice, Shape, Walker
from prism_ray.prism.tree import Path, PlaceTree
from prism_ray.scheduling import Match

SYSTEM = Segment(b"system", 30)


class Resident:
    """A cache that has these paths."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._fronts = {path[:end] for path in paths for end in range(1, len(path) + 1)}

    def match(self, path: Path) -> Match:
        ends = [end for end in range(1, len(path) + 1) if path[:end] in self._fronts]
        tokens = sum(atom.tokens for atom in path[: max(ends, default=0)])
        return Match(tokens, tokens)


def skeleton(letters: str, *, tokens: int = 40, run: int | None = 0) -> Skeleton:
    segments = tuple(Segment(letter.encode(), tokens, run=run) for letter in letters)
    return Skeleton(SYSTEM, segments, (NO_GAP,) * len(segments), 7)


def written(skeleton: Skeleton, order: Sequence[int]) -> str:
    return b"".join(skeleton.segments[n].id for n in order).decode()


def tree_of(resident: Sequence[tuple[Skeleton, Order]]) -> PlaceTree:
    tree = PlaceTree()
    tree.begin(Resident([]))
    for each, order in resident:
        tree.add(Shape(each).steps(order))
    tree.begin(Resident([each.path(order) for each, order in resident]))
    return tree


def plan(
    requests: Sequence[Skeleton],
    resident: Sequence[str] = (),
    popular: str = "",
    *,
    share: bool = True,
) -> list[str]:
    """What each request writes; ``popular`` lists segments, the most popular first."""

    def popularity(choice: Choice) -> float:
        letter = choice.segment.decode()
        return float(-popular.index(letter)) if letter in popular else float("-inf")

    fronts = [(skeleton(letters), tuple(range(len(letters)))) for letters in resident]
    walkers = [Walker(Shape(each)) for each in requests]
    Planner(tree_of(fronts), popularity, share=share).plan(walkers)
    return [written(each, walker.order) for each, walker in zip(requests, walkers, strict=True)]


def computed(paths: Iterable[Path], resident: Iterable[Path]) -> int:
    """Tokens that are computed if each front of a path is computed once."""
    fronts = {path[:end] for path in resident for end in range(1, len(path) + 1)}
    tokens = 0
    for path in paths:
        for end in range(1, len(path) + 1):
            if path[:end] not in fronts:
                fronts.add(path[:end])
                tokens += path[end - 1].tokens
    return tokens


def test_a_request_follows_the_longest_resident_path_that_it_can_write() -> None:
    assert plan([skeleton("abcd")], resident=["ab", "dca", "x"]) == ["dcab"]
    assert plan([skeleton("abcd")], resident=["xa"]) == ["abcd"]


def test_what_is_not_resident_is_written_most_popular_first_equals_as_they_came() -> None:
    assert plan([skeleton("abcd")], popular="dc") == ["dcab"]
    assert plan([skeleton("abcd")], resident=["b"], popular="dc") == ["bdca"]


def test_waiting_requests_write_what_they_share_first() -> None:
    assert plan([skeleton("xbpa"), skeleton("aqyb")]) == ["abxp", "abqy"]
    assert plan([skeleton("xbpa"), skeleton("aqyb")], share=False) == ["xbpa", "aqyb"]


def test_nobody_is_torn_from_a_longer_resident_path() -> None:
    requests = [skeleton("abc"), skeleton("aqr"), skeleton("ast")]
    assert plan(requests, resident=["bc"]) == ["bca", "aqr", "ast"]


def test_what_lies_resident_behind_a_segment_counts_for_it() -> None:
    """Three have ``a``, and two would share it behind ``b`` too: each goes on to what it has there."""
    requests = [skeleton("abp"), skeleton("abq"), skeleton("ar")]
    assert plan(requests) == ["abp", "abq", "ar"]
    assert plan(requests, resident=["bpz", "bqz"]) == ["bpa", "bqa", "ar"]


def test_a_front_of_its_own_is_planned_by_itself() -> None:
    other = Skeleton(Segment(b"other", 30), skeleton("xa").segments, (NO_GAP,) * 2, 7)
    assert plan([skeleton("ya"), other, skeleton("za")]) == ["ay", "xa", "az"]


def test_gaps_stay_with_their_slots_and_part_what_they_part() -> None:
    segments = skeleton("ab").segments
    gaps = (Atom(b"-", 3), Atom(b"+", 3))
    one, two = (Skeleton(SYSTEM, s, gaps, 5) for s in (segments, segments[::-1]))
    fronts = [(one, (1, 0))]
    walkers = [Walker(Shape(one)), Walker(Shape(two))]
    Planner(tree_of(fronts), lambda choice: 0.0).plan(walkers)
    assert one.path(tuple(walkers[0].order)) == two.path(tuple(walkers[1].order))
    assert written(one, walkers[0].order) == "ba"


@st.composite
def skeletons(draw: st.DrawFn) -> Skeleton:
    pieces = draw(
        st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0, 0, 1, None])), max_size=5)
    )
    segments = tuple(Segment(name.encode(), 10 + ord(name) % 7, run=run) for name, run in pieces)
    gaps = tuple(draw(st.sampled_from([NO_GAP, Atom(b"gap", 2)])) for _ in segments)
    system = draw(st.sampled_from([None, SYSTEM]))
    return Skeleton(system, segments, gaps, 3)


def orders(each: Skeleton) -> list[Order]:
    """Every allowed order."""
    found = []
    for order in permutations(range(len(each.segments))):
        try:
            each.check_order(order)
        except ValueError:
            continue
        found.append(order)
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(skeletons().filter(lambda s: s.runs), max_size=5),
    st.lists(skeletons(), max_size=4),
    st.randoms(),
)
def test_orders_are_allowed_and_one_alone_matches_the_most_it_can(
    waiting: list[Skeleton], earlier: list[Skeleton], rng: Random
) -> None:
    resident = [(each, rng.choice(orders(each))) for each in earlier]
    tree = tree_of(resident)
    cache = Resident([each.path(order) for each, order in resident])
    for group in ([each] for each in waiting):
        walker = Walker(Shape(group[0]))
        Planner(tree, lambda choice: 0.0).plan([walker])
        group[0].check_order(walker.order)
        best = max(cache.match(group[0].path(order)).cached_tokens for order in orders(group[0]))
        assert cache.match(group[0].path(tuple(walker.order))).cached_tokens == best
    walkers = [Walker(Shape(each)) for each in waiting]
    Planner(tree, lambda choice: 0.0).plan(walkers)
    for each, walker in zip(waiting, walkers, strict=True):
        each.check_order(walker.order)


@pytest.mark.parametrize("letters", ["abcd", "abcde"])
def test_a_plan_computes_little_more_than_the_best_orders_together(letters: str) -> None:
    """Three requests of three segments: every combination of orders is tried."""
    rng = Random(4)
    planned_tokens = best_tokens = native_tokens = 0
    for _ in range(60):
        requests = [skeleton("".join(rng.sample(letters, 3))) for _ in range(3)]
        names = plan(requests)
        chosen = [skeleton(name).path((0, 1, 2)) for name in names]
        planned_tokens += computed(chosen, ())
        native_tokens += computed([each.path((0, 1, 2)) for each in requests], ())
        paths = [[each.path(order) for order in permutations(range(3))] for each in requests]
        best_tokens += min(computed(each, ()) for each in product(*paths))
    assert planned_tokens <= 1.03 * best_tokens
    assert planned_tokens < 0.9 * native_tokens


def test_the_tree_forgets_what_is_resident_no_more() -> None:
    tree = PlaceTree(sweep_above=8)
    for n in range(40):
        tree.begin(Resident([]))
        each = skeleton(chr(0x100 + n) + chr(0x200 + n))
        tree.add(Shape(each).steps((0, 1)))
    assert len(tree) <= 8 + 3
