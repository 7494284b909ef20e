"""Anchors as they are named outside a tree: path keys, marks, and who hears what a cache keeps.

A path key names a place in a tree of prompts: the same text behind another front has another key.
Trees, demand and eviction live elsewhere; nothing here counts tokens of a running request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from prism_ray.dart.node import Anchor, NodeKind, Owner
from prism_ray.model import Atom, Order, SegmentId, Skeleton

PathKey = bytes
"""Digest of all atoms from the start of a prompt up to one of its anchors; compared, never decoded."""

PATH_KEY_BYTES = 16
ROOT_KEY = blake2b(digest_size=PATH_KEY_BYTES).digest()


def extend_path_key(key: PathKey, atoms: Iterable[Atom]) -> PathKey:
    """The key of a path that goes on from one of this key; ``ROOT_KEY`` is the empty path's."""
    for atom in atoms:
        key = blake2b(key + atom.id, digest_size=PATH_KEY_BYTES).digest()
    return key


def path_keys(path: Iterable[Atom]) -> tuple[PathKey, ...]:
    """A key for each atom of ``path``, chained: key_i = blake2b(key_(i-1) + atom_i.id), 16 bytes.

    Equal keys mean equal atoms up to that one. Atoms without tokens take part like any other, so
    callers leave out what ``Skeleton.path`` leaves out.
    """
    keys: list[PathKey] = []
    key = ROOT_KEY
    for atom in path:
        key = blake2b(key + atom.id, digest_size=PATH_KEY_BYTES).digest()
        keys.append(key)
    return tuple(keys)


class AnchorMark(NamedTuple):
    """A boundary at ``offset_tokens``, and who owns the tokens between the mark before and it.

    ``segment`` is what demand is asked by; ``path_key`` names this very place. Both are None for
    spans that nobody can share (the private suffix, generated tokens).
    """

    offset_tokens: int
    kind: NodeKind
    segment: SegmentId | None = None
    path_key: PathKey | None = None

    @classmethod
    def of(cls, anchor: Anchor) -> AnchorMark:
        return cls(anchor.offset, *anchor.owner)

    @property
    def owner(self) -> Owner:
        return Owner(self.kind, self.segment, self.path_key)


def skeleton_anchors(skeleton: Skeleton, order: Order) -> tuple[Anchor, ...]:
    """The marks of a prompt as the reference tree takes them."""
    return tuple(Anchor(m.offset_tokens, m.owner) for m in _marks(skeleton, order))


def skeleton_marks(skeleton: Skeleton, order: Order) -> tuple[AnchorMark, ...]:
    """Marks of a prompt written in ``order``: system prefix, each slot with its gap, private end.

    A span's path key is that of its segment's atom in ``skeleton.path(order)``; the gap before a
    segment is part of the chain and of the span (choice A9).
    """
    return tuple(_marks(skeleton, order))


def _marks(skeleton: Skeleton, order: Order) -> Iterator[AnchorMark]:
    keys = iter(path_keys(skeleton.path(order)))
    offset = 0
    if skeleton.system is not None:
        offset = skeleton.system.tokens
        yield AnchorMark(offset, NodeKind.SYSTEM, skeleton.system.id, next(keys))
    for slot, index in enumerate(order):
        gap, segment = skeleton.gaps[slot], skeleton.segments[index]
        if gap.tokens:
            next(keys)
        offset += gap.tokens + segment.tokens
        yield AnchorMark(offset, NodeKind.REUSABLE, segment.id, next(keys))
    yield AnchorMark(offset + skeleton.private_tokens, NodeKind.PRIVATE)


class CacheObserver(Protocol):
    """Hears what a prefix cache holds. Offsets are tokens from the start of the prompt.

    Residency is closed upwards: while any token of a span is resident, all before it are. A front
    that a span shares with another span is resident with either; ``evicted`` of a span's last own
    tokens therefore reaches back to the span's start, although such a front may stay with the other.
    """

    def inserted(self, marks: Sequence[AnchorMark], resident_tokens: int) -> None:
        """The first ``resident_tokens`` of a request with these marks are cached (prefill end, finish)."""

    def evicted(self, path_key: PathKey | None, kind: NodeKind, start: int, end: int) -> None:
        """Tokens [start, end) of the span with this key are gone; None for spans without a key."""

    def flushed(self) -> None:
        """Everything is gone."""
