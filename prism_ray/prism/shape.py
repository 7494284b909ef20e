"""What a plan needs to know of a skeleton: which segment can stand in which slot, under which name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prism_ray.model import Atom, Order, SegmentId, Skeleton
from prism_ray.prism.tree import Path, Step


class Choice(NamedTuple):
    """A segment for a slot: the step it makes there, its number and bit in the skeleton, its length."""

    step: Step
    number: int
    bit: int
    tokens: int
    segment: SegmentId


class Shape:
    """A skeleton as slots with choices.

    ``front`` is what comes before every slot (the system prefix). ``movable`` says whether there is
    anything to choose; then ``slots[j]`` are the choices of slot j, those of its run or the one
    segment that stands there.
    """

    __slots__ = ("_native", "front", "movable", "skeleton", "slots")

    def __init__(self, skeleton: Skeleton) -> None:
        self.skeleton = skeleton
        system = skeleton.system
        self.front: Atom | None = None if system is None else Atom(system.id, system.tokens)
        runs = skeleton.runs
        self.movable = bool(runs)
        members = {slot: run for run in runs for slot in run}
        self.slots: tuple[tuple[Choice, ...], ...] = ()
        self._native: tuple[tuple[Step, Path], ...] = ()
        if self.movable:
            self.slots = tuple(
                tuple(self._choice(slot, index) for index in members.get(slot, (slot,)))
                for slot in range(len(skeleton.segments))
            )
        else:
            self._native = tuple(self._steps(skeleton.native_order))

    def _choice(self, slot: int, index: int) -> Choice:
        gap, segment = self.skeleton.gaps[slot], self.skeleton.segments[index]
        step = segment.id if not gap.tokens else gap.id + b"|" + segment.id
        return Choice(step, index, 1 << index, gap.tokens + segment.tokens, segment.id)

    def steps(self, order: Order) -> Iterable[tuple[Step, Path]]:
        """The steps of the path under ``order``, each with the atoms that it adds."""
        return self._native or self._steps(order)

    def _steps(self, order: Order) -> Iterator[tuple[Step, Path]]:
        if self.front is not None:
            yield self.front.id, (self.front,)
        for slot, index in enumerate(order):
            gap, segment = self.skeleton.gaps[slot], self.skeleton.segments[index]
            atom = Atom(segment.id, segment.tokens)
            if gap.tokens:
                yield gap.id + b"|" + segment.id, (gap, atom)
            else:
                yield segment.id, (atom,)


class Walker:
    """A request on its way down the tree: which slot it is at, and what it has written so far."""

    __slots__ = ("order", "shape", "slot", "used")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.slot = 0
        self.used = 0
        self.order: list[int] = []

    def choices(self) -> Sequence[Choice]:
        """What can come next; nothing at the end."""
        slots = self.shape.slots
        if self.slot == len(slots):
            return ()
        used = self.used
        return [choice for choice in slots[self.slot] if not choice.bit & used]

    def take(self, choice: Choice) -> None:
        self.order.append(choice.number)
        self.used |= choice.bit
        self.slot += 1
