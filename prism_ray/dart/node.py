"""What a radix tree over atoms is made of: pieces, anchors, owners and nodes; no tree operation.

Nothing here looks at a clock, at randomness or at the order of a set: whatever decides an eviction
must come out the same on every tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

from prism_ray.model import Atom, SegmentId


class NodeKind(IntEnum):
    """Who owns a node's tokens. A larger kind replaces a smaller one, never the reverse."""

    PRIVATE = 0
    GENERATED = 1
    REUSABLE = 2
    SYSTEM = 3


class Owner(NamedTuple):
    """The kind of a span of tokens and, where it is reusable, the segment that it belongs to.

    ``path_key`` names the very place of the span (see ``anchors``), ``segment`` its text anywhere.
    """

    kind: NodeKind
    segment: SegmentId | None = None
    path_key: bytes | None = None


PRIVATE = Owner(NodeKind.PRIVATE)
GENERATED = Owner(NodeKind.GENERATED)


class Anchor(NamedTuple):
    """A boundary: the tokens between the anchor before it and ``offset`` belong to ``owner``."""

    offset: int
    owner: Owner


class Span(NamedTuple):
    """Tokens up to ``stop`` (whole pages) belong to ``owner``; ``anchored``: its boundary is there."""

    stop: int
    owner: Owner
    anchored: bool


def owned_spans(anchors: Iterable[Anchor], end: int, page: int = 1) -> list[Span]:
    """The non-empty spans of a prompt's first ``end`` tokens; behind the last anchor all is private.

    Anchors ascend by offset and are rounded down to whole pages.
    """
    spans: list[Span] = []
    position = 0
    for offset, owner in anchors:
        whole = offset - offset % page
        stop = min(whole, end)
        if stop > position:
            spans.append(Span(stop, owner, stop == whole))
            position = stop
        if whole >= end:
            break
    if position < end:
        spans.append(Span(end, PRIVATE, False))
    return spans


class Piece(NamedTuple):
    """``length`` tokens of an atom from token ``start`` on; anchors and chunks cut atoms anywhere."""

    id: bytes
    start: int
    length: int


class Cursor:
    """A position inside a path of atoms that moves forward and cuts pieces."""

    __slots__ = ("_atoms", "_index", "_offset")

    def __init__(self, path: tuple[Atom, ...]) -> None:
        self._atoms = path
        self._index = 0
        self._offset = 0
        self._skip_empty()

    def _skip_empty(self) -> None:
        atoms = self._atoms
        while self._index < len(atoms) and self._offset >= atoms[self._index].tokens:
            self._offset = 0
            self._index += 1

    def advance(self, tokens: int) -> None:
        self._offset += tokens
        atoms = self._atoms
        while self._index < len(atoms) and self._offset >= atoms[self._index].tokens:
            self._offset -= atoms[self._index].tokens
            self._index += 1

    def slice(self, tokens: int) -> tuple[Piece, ...]:
        """The next ``tokens`` tokens as pieces, at most one an atom; the cursor stays."""
        index, offset = self._index, self._offset
        if tokens > 0:
            atom = self._atoms[index]
            if offset + tokens <= atom.tokens:  # nearly always: an edge is a segment, a key a page
                return (Piece(atom.id, offset, tokens),)
        pieces = []
        while tokens > 0:
            atom = self._atoms[index]
            length = min(atom.tokens - offset, tokens)
            if length:
                pieces.append(Piece(atom.id, offset, length))
            tokens -= length
            index, offset = index + 1, 0
        return tuple(pieces)

    def common(self, pieces: tuple[Piece, ...], limit: int) -> int:
        """How many of the next ``limit`` tokens equal the front of ``pieces``."""
        atoms, index, offset = self._atoms, self._index, self._offset
        if len(pieces) == 1 and index < len(atoms):
            atom, (name, start, length) = atoms[index], pieces[0]
            if name == atom.id and start == offset and length <= atom.tokens - offset:
                return min(length, limit)
        matched = 0
        for piece in pieces:
            done = 0
            while done < piece.length:
                if matched >= limit or index >= len(atoms):
                    return min(matched, limit)
                atom = atoms[index]
                if atom.tokens == offset:
                    index, offset = index + 1, 0
                    continue
                if atom.id != piece.id or offset != piece.start + done:
                    return min(matched, limit)
                step = min(piece.length - done, atom.tokens - offset)
                done += step
                offset += step
                matched += step
        return min(matched, limit)


def path_tokens(path: tuple[Atom, ...]) -> int:
    return sum(atom.tokens for atom in path)


def split_pieces(
    pieces: tuple[Piece, ...], tokens: int
) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Cut an edge after ``tokens`` tokens, inside a piece if need be."""
    upper: list[Piece] = []
    for index, piece in enumerate(pieces):
        if tokens >= piece.length:
            upper.append(piece)
            tokens -= piece.length
            continue
        lower = list(pieces[index:])
        if tokens:
            upper.append(Piece(piece.id, piece.start, tokens))
            lower[0] = Piece(piece.id, piece.start + tokens, piece.length - tokens)
        return tuple(upper), tuple(lower)
    return tuple(upper), ()


def first_pieces(pieces: tuple[Piece, ...], tokens: int) -> tuple[Piece, ...]:
    """The upper half of ``split_pieces`` alone."""
    first = pieces[0]
    if tokens < first.length:
        return (Piece(first.id, first.start, tokens),)
    return split_pieces(pieces, tokens)[0]


@runtime_checkable
class NodeView(Protocol):
    """What a retention strategy may know of a node; SGLang's own nodes can be shown this way too.

    ``last_access`` counts tree operations, never seconds. ``hits`` counts finished prefills over it.
    """

    @property
    def kind(self) -> NodeKind: ...
    @property
    def segment(self) -> SegmentId | None: ...
    @property
    def path_key(self) -> bytes | None: ...
    @property
    def last_access(self) -> int: ...
    @property
    def hits(self) -> int: ...
    @property
    def protected(self) -> bool: ...


class NodeFacts(NamedTuple):
    """A NodeView by value, for trees that are not ours."""

    kind: NodeKind
    segment: SegmentId | None
    last_access: int
    hits: int
    protected: bool
    path_key: bytes | None = None


ChildKey = tuple[Piece, ...]
"""The first page of an edge: children differ in it, and pages are never shared in part."""


@dataclass(eq=False, slots=True)
class Node:
    """An edge and its end. ``start`` is the number of tokens above it; ``locks`` counts users.

    ``span_start`` is where the owner's span began when it was last inserted (at most ``start``);
    ``anchored`` says that a boundary of the owner's span ends here; ``serial`` numbers nodes by
    creation, the last tie break. ``heap_key`` belongs to the heap of evictable leaves.
    """

    serial: int
    parent: Node | None
    pieces: tuple[Piece, ...]
    tokens: int
    start: int
    owner: Owner = PRIVATE
    span_start: int = 0
    last_access: int = 0
    hits: int = 0
    locks: int = 0
    anchored: bool = False
    protected: bool = False
    children: dict[ChildKey, Node] | None = None
    heap_key: tuple[float, ...] | None = None

    @property
    def kind(self) -> NodeKind:
        return self.owner.kind

    @property
    def segment(self) -> SegmentId | None:
        return self.owner.segment

    @property
    def path_key(self) -> bytes | None:
        return self.owner.path_key

    @property
    def end(self) -> int:
        return self.start + self.tokens

    def ancestors(self) -> Iterator[Node]:
        """This node and all above it, without the root."""
        node: Node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def path(self) -> tuple[Piece, ...]:
        """All tokens from the root to this node's end."""
        edges = [node.pieces for node in self.ancestors()]
        return tuple(piece for edge in reversed(edges) for piece in edge)

    def __repr__(self) -> str:
        return f"Node({self.serial}, {self.owner.kind.name}, [{self.start}, {self.end}))"
