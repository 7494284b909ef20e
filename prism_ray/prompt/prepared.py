"""A prompt that is ready to be written in any allowed order: its skeleton, and the ids of its pieces.

Holds text, so it lives at the ingress and goes nowhere else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from prism_ray.dart.anchors import skeleton_marks
from prism_ray.model import NO_GAP, Atom, Order, Segment, SegmentKind, Skeleton
from prism_ray.prompt.identity import Identities
from prism_ray.prompt.layout import Layout

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class PieceIds:
    """Token ids of a layout's pieces; ``segments`` and ``gaps`` go by slot."""

    system: Ids
    gaps: tuple[Ids, ...]
    segments: tuple[Ids, ...]
    private: Ids


@dataclass(frozen=True, slots=True)
class Assembled:
    """The prompt in its final order.

    ``boundaries`` are token offsets where anchors go, ``segments`` the ids of what ends there (None:
    nothing reusable), ``path_keys`` the names of these places in a tree of prompts. ``body`` is the
    client's, without ``prism`` and in this order, so that the engine's own rendering of it is
    ``text``. ``fallback``: the template did not write what the pieces say, so its own text was
    tokenized as a whole; the length may differ from the skeleton's.
    """

    text: str
    prompt_ids: list[int]
    boundaries: tuple[int, ...]
    segments: tuple[bytes | None, ...]
    path_keys: tuple[bytes | None, ...]
    body: dict[str, Any]
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """What the prompt's own rules make of an order: its text, and the body that says the same."""

    text: str
    body: dict[str, Any]


class PreparedPrompt:
    """``skeleton`` for the control plane, ``assemble`` for when the order is decided."""

    def __init__(
        self,
        layout: Layout,
        ids: PieceIds,
        identities: Identities,
        write: Callable[[Order], Written],
        encode: Callable[[str], list[int]],
        native_body: dict[str, Any],
    ) -> None:
        self._layout = layout
        self._ids = ids
        self._write = write
        self._encode = encode
        self._native_body = native_body
        self.skeleton = _skeleton(layout, ids, identities)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for people for each segment: the client's label, else what kind it is."""
        return tuple(s.label or str(s.kind) for s in self.skeleton.segments)

    def assemble(self, order: Order | None = None) -> Assembled:
        """Write the prompt in ``order`` (None: as the client did). ValueError if not allowed."""
        native = self.skeleton.native_order
        order = native if order is None else order
        self.skeleton.check_order(order)
        text, body = self._layout.written(order), self._native_body
        if order != native:
            written = self._write(order)
            body = written.body
            if written.text != text:
                ids = self._encode(written.text)
                return Assembled(
                    written.text, ids, (len(ids),), (None,), (None,), body, fallback=True
                )
        marks = skeleton_marks(self.skeleton, order)
        return Assembled(
            text,
            list(chain.from_iterable(self._in(order))),
            tuple(mark.offset_tokens for mark in marks),
            tuple(mark.segment for mark in marks),
            tuple(mark.path_key for mark in marks),
            body,
        )

    def _in(self, order: Order) -> Iterable[Ids]:
        yield self._ids.system
        for slot, index in enumerate(order):
            yield self._ids.gaps[slot]
            yield self._ids.segments[index]
        yield self._ids.private


def cut(ids: Sequence[int], ends: Sequence[int], layout: Layout) -> PieceIds:
    """Share out the ids of the whole text: each boundary rounded down to the end of a token."""
    edges = [layout.system_end, *(edge for s in layout.slots for edge in (s.start, s.end))]
    cuts = [bisect_right(ends, edge) if edge else 0 for edge in edges]
    pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    return PieceIds(pieces[0], tuple(pieces[1:-1:2]), tuple(pieces[2:-1:2]), pieces[-1])


def _skeleton(layout: Layout, ids: PieceIds, identities: Identities) -> Skeleton:
    system = None
    if ids.system:
        name = identities.system(layout.system, ids.system)
        system = Segment(name, len(ids.system), SegmentKind.SYSTEM)
    segments = tuple(
        Segment(identities.segment(text, piece), len(piece), slot.kind, slot.run, slot.label)
        for slot, text, piece in zip(layout.slots, layout.segments, ids.segments, strict=True)
    )
    gaps = tuple(
        Atom(identities.gap(text, piece), len(piece)) if piece else NO_GAP
        for text, piece in zip(layout.gaps, ids.gaps, strict=True)
    )
    return Skeleton(system, segments, gaps, len(ids.private))
