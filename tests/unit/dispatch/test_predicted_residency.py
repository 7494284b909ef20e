from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prism_ray.dispatch import PredictedResidency
from prism_ray.model import Atom
from prism_ray.scheduling import Match

ROOMY = 10_000


def path(names: str, tokens: int = 10) -> tuple[Atom, ...]:
    return tuple(Atom(name.encode(), tokens) for name in names)


class TestPredictedResidency:
    def test_a_path_is_computing_until_its_prefill_ended_and_cached_after(self) -> None:
        residency = PredictedResidency()
        assert residency.send("one", path("ab"), ROOMY) == Match(0, 0)
        assert residency.match(path("abc")) == Match(0, 20)
        residency.prefill_ended("one")
        assert residency.match(path("abc")) == Match(20, 20)

    def test_what_was_never_computed_leaves_with_its_request(self) -> None:
        residency = PredictedResidency()
        residency.send("one", path("ab"), ROOMY)
        residency.release("one")
        assert residency.tokens == 0

    def test_a_front_that_another_request_is_computing_stays(self) -> None:
        residency = PredictedResidency()
        residency.send("one", path("ab"), ROOMY)
        residency.send("two", path("ac"), ROOMY)
        residency.release("one")
        residency.check_integrity()
        assert residency.match(path("ab")) == Match(0, 10)

    def test_the_leaf_used_longest_ago_is_given_up_first(self) -> None:
        residency = PredictedResidency()
        for name, names in (("one", "ab"), ("two", "ac"), ("three", "ab")):
            residency.send(name, path(names), ROOMY)
            residency.prefill_ended(name)
            residency.release(name)
        residency.send("four", path("d"), 20)
        assert residency.match(path("ac")).cached_tokens == 10
        assert residency.match(path("ab")).cached_tokens == 20

    def test_what_is_in_flight_stays_however_small_the_room(self) -> None:
        residency = PredictedResidency()
        residency.send("one", path("ab"), 0)
        residency.prefill_ended("one")
        residency.send("two", path("c"), 0)
        assert residency.match(path("ab")).cached_tokens == 20

    def test_a_flush_forgets_all_but_what_is_in_flight(self) -> None:
        residency = PredictedResidency()
        residency.send("one", path("ab"), ROOMY)
        residency.prefill_ended("one")
        residency.release("one")
        residency.send("two", path("c"), ROOMY)
        residency.clear()
        residency.check_integrity()
        assert residency.tokens == 10

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 5), st.text("abc", max_size=4), st.integers(0, 60), st.booleans()
            ),
            max_size=60,
        )
    )
    def test_books_balance_and_room_is_kept(self, steps: list[tuple[int, str, int, bool]]) -> None:
        residency, held = PredictedResidency(), set()
        for number, names, room, ends in steps:
            name = str(number)
            if name in held:
                if ends:
                    residency.prefill_ended(name)
                residency.release(name)
                held.remove(name)
            else:
                residency.send(name, path(names), room)
                held.add(name)
                assert residency.tokens - residency.held_tokens <= room
            residency.check_integrity()
        for name in held:
            residency.release(name)
        assert residency.held_tokens == 0
