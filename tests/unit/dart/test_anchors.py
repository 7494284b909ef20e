"""Path keys name places, and marks say who owns the tokens before them."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from prism_ray.dart.anchors import AnchorMark, path_keys, skeleton_anchors, skeleton_marks
from prism_ray.dart.node import NodeKind
from prism_ray.model import NO_GAP, Atom, Segment, Skeleton

SYSTEM = Segment(b"sys", 10)
SKELETON = Skeleton(
    SYSTEM,
    (Segment(b"a", 20, run=0), Segment(b"b", 30, run=0)),
    (Atom(b"gap", 2), NO_GAP),
    private_tokens=7,
)


def test_a_key_chains_the_digests_of_all_atoms_before_it() -> None:
    first = blake2b(blake2b(digest_size=16).digest() + b"a", digest_size=16).digest()
    second = blake2b(first + b"b", digest_size=16).digest()
    assert path_keys((Atom(b"a", 3), Atom(b"b", 4))) == (first, second)


atoms = st.lists(st.builds(Atom, st.binary(min_size=4, max_size=4), st.integers(1, 9)), max_size=6)


@given(atoms, atoms)
def test_keys_are_equal_exactly_as_far_as_the_atoms_are(one: list[Atom], other: list[Atom]) -> None:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared].id == other[shared].id:
        shared += 1
    same = [a == b for a, b in zip(path_keys(one), path_keys(other), strict=False)]
    assert same == [i < shared for i in range(min(len(one), len(other)))]


def test_marks_lie_at_the_boundaries_and_name_segments_not_gaps() -> None:
    keys = path_keys(SKELETON.path((1, 0)))  # sys, gap, b, a
    assert skeleton_marks(SKELETON, (1, 0)) == (
        AnchorMark(10, NodeKind.SYSTEM, b"sys", keys[0]),
        AnchorMark(42, NodeKind.REUSABLE, b"b", keys[2]),
        AnchorMark(62, NodeKind.REUSABLE, b"a", keys[3]),
        AnchorMark(69, NodeKind.PRIVATE),
    )


def test_marks_and_anchors_of_a_skeleton_agree() -> None:
    anchors = skeleton_anchors(SKELETON, (0, 1))
    marks = skeleton_marks(SKELETON, (0, 1))
    assert [AnchorMark.of(anchor) for anchor in anchors] == list(marks)
