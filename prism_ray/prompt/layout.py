"""A rendered prompt cut into system | gap, segment | gap, segment | ... | private. Characters only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prism_ray.model import Order, SegmentKind


@dataclass(frozen=True, slots=True)
class Slot:
    """A segment's native extent in the text; ``site`` is where its text stands in the body.

    ``marked`` says that the client named it: it is a segment however short it is.
    """

    start: int
    end: int
    kind: SegmentKind
    label: str = ""
    run: int | None = None
    site: int = -1
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """``slots`` in text order, none overlapping; the text before ``system_end`` is the system."""

    text: str
    system_end: int
    slots: tuple[Slot, ...]

    @property
    def system(self) -> str:
        return self.text[: self.system_end]

    @property
    def segments(self) -> list[str]:
        return [self.text[slot.start : slot.end] for slot in self.slots]

    @property
    def gaps(self) -> list[str]:
        """The fixed text before each slot."""
        starts = [self.system_end, *(slot.end for slot in self.slots)]
        return [self.text[a : slot.start] for a, slot in zip(starts, self.slots, strict=False)]

    @property
    def private(self) -> str:
        return self.text[self.slots[-1].end if self.slots else self.system_end :]

    @property
    def movable(self) -> bool:
        """Is there a run of two or more segments?"""
        runs = [slot.run for slot in self.slots if slot.run is not None]
        return len(runs) != len(set(runs))

    def written(self, order: Order) -> str:
        """The whole text with the segments in ``order``."""
        segments, parts = self.segments, [self.system]
        for gap, index in zip(self.gaps, order, strict=True):
            parts += (gap, segments[index])
        return "".join([*parts, self.private])

    def keep(self, wanted: Sequence[bool]) -> Layout:
        """Without the slots that are not wanted; their text joins the next gap."""
        slots = tuple(s for s, keep in zip(self.slots, wanted, strict=True) if keep)
        return replace(self, slots=slots)

    def pinned(self) -> Layout:
        """With every segment where it stands."""
        return replace(self, slots=tuple(replace(slot, run=None) for slot in self.slots))


def make_layout(text: str, system_end: int, slots: Sequence[Slot]) -> Layout:
    """Sort the slots and drop those that are empty or overlap what comes before them."""
    kept: list[Slot] = []
    cursor = system_end
    for slot in sorted(slots, key=lambda s: (s.start, s.end)):
        if cursor <= slot.start < slot.end <= len(text):
            kept.append(slot)
            cursor = slot.end
    return Layout(text, system_end, tuple(kept))
