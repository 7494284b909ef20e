"""What only requests that never came to a replica would have brought there is not believed to be there."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.model import Atom
from prism_ray.placement.forest import Forest, Use

H = 180.0


def path(letters: str) -> tuple[Atom, ...]:
    return tuple(Atom(letter.encode(), 10) for letter in letters)


def held(forest: Forest, letters: str, replica: str) -> int:
    """Atoms of a path that the replica is believed to hold."""
    found = forest.match(path(letters))
    if found.part is not None and replica in found.part.holders:
        return found.tokens // 10
    return max([n.end_tokens // 10 for n in found.nodes if replica in n.holders], default=0)


def forest() -> Forest:
    made = Forest(H)
    for replica in "rs":
        made.join(replica, 10_000)
    return made


def test_what_was_there_before_stays_though_nothing_parts_it_from_what_goes() -> None:
    trees = forest()
    trees.use(path("ab"), "r", 0.0)
    trees.expire(H)
    late = trees.use(path("abcd"), "r", H)
    assert trees.nodes == 1
    trees.withdraw(late)
    assert held(trees, "abcd", "r") == 2
    trees.check_integrity()


def test_what_expired_stays_since_others_may_have_brought_it() -> None:
    trees = forest()
    use = trees.use(path("ab"), "r", 0.0)
    trees.expire(H)
    trees.withdraw(use)
    assert held(trees, "ab", "r") == 2


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "ab", "abc", "abd", "b", ""]), st.sampled_from("rs"))
        | st.integers(0, 3),
        max_size=20,
    )
)
@settings(deadline=None, max_examples=200)
def test_a_replica_holds_the_fronts_of_all_that_came_there_and_no_more(
    steps: list[tuple[str, str] | int],
) -> None:
    """A pair is a use, a number withdraws one of those that are left."""
    trees = forest()
    uses: list[tuple[str, str, Use]] = []
    for step in steps:
        if isinstance(step, tuple):
            letters, replica = step
            uses.append((letters, replica, trees.use(path(letters), replica, 0.0)))
        elif step < len(uses):
            _, replica, gone = uses.pop(step)
            trees.withdraw(gone, [use for _, name, use in uses if name == replica])
        trees.check_integrity()
        for seen in ("abc", "abd", "b"):
            for name in "rs":
                there = [len(_common(u[0], seen)) for u in uses if u[1] == name]
                assert held(trees, seen, name) == max(there, default=0)


def _common(one: str, other: str) -> str:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return one[:same]
