from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_ray.dispatch import Footprint
from prism_ray.model import Atom


def path(names: str, tokens: int = 10) -> tuple[Atom, ...]:
    return tuple(Atom(name.encode(), tokens) for name in names)


class TestFootprint:
    def test_a_shared_front_counts_once_and_private_tokens_each(self) -> None:
        footprint = Footprint()
        footprint.add("one", path("abc"), 5)
        footprint.add("two", path("abd"), 7)
        assert footprint.tokens == 4 * 10 + 5 + 7

    def test_what_a_request_would_add_is_what_it_then_adds(self) -> None:
        footprint = Footprint()
        footprint.add("one", path("abc"), 5)
        assert footprint.added_tokens(path("abd"), 7) == 17
        before = footprint.tokens
        footprint.add("two", path("abd"), 7)
        assert footprint.tokens - before == 17

    def test_the_same_segment_behind_another_front_is_another_place(self) -> None:
        footprint = Footprint()
        footprint.add("one", path("ab"), 0)
        assert footprint.added_tokens(path("ba"), 0) == 20

    def test_a_request_is_held_once(self) -> None:
        footprint = Footprint()
        footprint.add("one", path("a"), 0)
        with pytest.raises(ValueError, match="held already"):
            footprint.add("one", path("b"), 0)

    @given(st.lists(st.tuples(st.integers(0, 9), st.text("abc", max_size=4)), max_size=40))
    def test_all_returns_when_all_have_left(self, steps: list[tuple[int, str]]) -> None:
        footprint, held = Footprint(), set()
        for number, names in steps:
            name = str(number)
            if name in held:
                assert footprint.remove(name)
                held.remove(name)
            else:
                footprint.add(name, path(names), number)
                held.add(name)
            footprint.check_integrity()
        for name in held:
            footprint.remove(name)
        assert footprint.tokens == 0
        assert not footprint.remove("never")
