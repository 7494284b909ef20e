"""Token ids of atoms: the same for the same trace, apart where atoms part."""

from __future__ import annotations

import pytest

from loadgen.real.token_ids import AtomTokens
from prism_ray.model import Atom


def atoms(count: int, tokens: int = 5) -> list[Atom]:
    return [Atom(b"atom %d" % number, tokens) for number in range(count)]


def test_ids_follow_from_the_atoms_alone() -> None:
    one, other = AtomTokens(2000), AtomTokens(2000)
    assert [one.of(a) for a in atoms(50)] == [other.of(a) for a in atoms(50)]


def test_a_prompt_is_its_atoms_ids_in_order() -> None:
    tokens = AtomTokens(2000)
    first, second = atoms(2)
    assert tokens.prompt((second, first)) == tokens.of(second) + tokens.of(first)
    assert all(512 <= number < 2000 for number in tokens.prompt((first, second)))


def test_no_two_atoms_begin_alike_while_there_are_ids() -> None:
    tokens = AtomTokens(612)
    firsts = [tokens.of(a)[0] for a in atoms(100)]
    assert sorted(firsts) == list(range(512, 612))
    assert 512 <= tokens.of(Atom(b"one more", 3))[0] < 612


def test_an_atom_without_tokens_has_no_ids() -> None:
    assert AtomTokens(2000).of(Atom(b"", 0)) == []


def test_one_id_cannot_name_two_lengths() -> None:
    tokens = AtomTokens(2000)
    tokens.of(Atom(b"a", 3))
    with pytest.raises(ValueError, match="3 tokens, not 4"):
        tokens.of(Atom(b"a", 4))


def test_generated_atoms_take_the_ids_that_were_generated() -> None:
    tokens = AtomTokens(2000)
    first, second = Atom(b"x", 2), Atom(b"y", 1)
    tokens.bind((first, second), (7, 8, 9))
    assert tokens.prompt((first, second)) == [7, 8, 9]
    tokens.bind((first, second), (1, 2, 3))
    assert tokens.prompt((first, second)) == [7, 8, 9]


def test_an_answer_that_was_cut_short_binds_nothing() -> None:
    tokens = AtomTokens(2000)
    tokens.bind((Atom(b"x", 2),), (7,))
    assert len(tokens.of(Atom(b"x", 2))) == 2
    assert tokens.of(Atom(b"x", 2))[0] >= 512
