"""A cursor cuts and compares pieces as if paths were lists of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prism_ray.dart.node import Cursor, Piece, path_tokens
from prism_ray.model import Atom

ATOMS = [Atom(b"a", 3), Atom(b"b", 4), Atom(b"c", 1), Atom(b"e", 0)]
paths = st.lists(st.sampled_from(ATOMS), max_size=5).map(tuple)
places = st.integers(0, 20)


def tokens_of(pieces: tuple[Piece, ...]) -> list[tuple[bytes, int]]:
    return [(piece.id, piece.start + n) for piece in pieces for n in range(piece.length)]


def at(path: tuple[Atom, ...], place: int) -> tuple[Cursor, int]:
    """A cursor at a place of the path, and how many tokens lie ahead of it."""
    total = path_tokens(path)
    cursor = Cursor(path)
    cursor.advance(min(place, total))
    return cursor, total - min(place, total)


@given(paths, places, places)
def test_a_slice_has_the_next_tokens_and_the_cursor_stays(
    path: tuple[Atom, ...], place: int, tokens: int
) -> None:
    cursor, ahead = at(path, place)
    whole = tuple(Piece(atom.id, 0, atom.tokens) for atom in path)
    start = path_tokens(path) - ahead
    for _ in range(2):
        cut = cursor.slice(min(tokens, ahead))
        assert tokens_of(cut) == tokens_of(whole)[start : start + min(tokens, ahead)]
        assert all(piece.length for piece in cut)


@given(paths, places, paths, places, places, places)
def test_what_is_common_is_counted_token_by_token(
    path: tuple[Atom, ...],
    place: int,
    other: tuple[Atom, ...],
    other_place: int,
    length: int,
    limit: int,
) -> None:
    cursor, ahead = at(path, place)
    other_cursor, other_ahead = at(other, other_place)
    pieces = other_cursor.slice(min(length, other_ahead))
    same = 0
    for one, another in zip(tokens_of(cursor.slice(ahead)), tokens_of(pieces), strict=False):
        if one != another:
            break
        same += 1
    assert cursor.common(pieces, limit) == min(same, limit)
