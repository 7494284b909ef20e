from __future__ import annotations

import pytest

from prism_ray.placement import PLACEMENTS, ReplicaLoad, make_placement
from prism_ray.registry import UnknownName


def load(name: str, tokens: int = 0, running: int = 0, dispatched: int = 0) -> ReplicaLoad:
    return ReplicaLoad(name, tokens, running, dispatched)


class TestPlacement:
    def test_round_robin_passes_over_a_replica_without_credit(self) -> None:
        placement = make_placement("round-robin")
        got = []
        for names in ("abc", "abc", "ab", "ab"):
            got.append(placement.choose([load(name) for name in names]).replica)
            placement.took(got[-1])
        assert got == ["a", "b", "a", "b"]

    def test_a_replica_that_was_chosen_for_nothing_keeps_its_turn(self) -> None:
        placement = make_placement("round-robin")
        placement.took(placement.choose([load("a"), load("b")]).replica)
        assert placement.choose([load("a"), load("b")]).replica == "b"
        assert placement.choose([load("a"), load("b")]).replica == "b"

    def test_least_loaded_compares_tokens_then_requests_then_history(self) -> None:
        placement = make_placement("least-loaded")
        for loads in (
            [load("a", 10), load("b", 5, 9)],
            [load("a", 5, 2), load("b", 5, 1)],
            [load("a", dispatched=3), load("b", dispatched=2)],
        ):
            assert placement.choose(loads).replica == "b"

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(UnknownName, match="least-loaded"):
            make_placement("psychic")

    @pytest.mark.parametrize("name", list(PLACEMENTS))
    def test_parameters_that_do_not_exist_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="speed"):
            make_placement(name, {"speed": 3})
