"""Prompts cut into blocks: tokens that are only ever used together, and by whom. No bound in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prism_ray.model import Atom


class Prompt(NamedTuple):
    """A prompt as it is written, when it came, and what was generated behind it."""

    path: tuple[Atom, ...]
    arrival_s: float = 0.0
    output: tuple[Atom, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(atom.tokens for atom in self.path)


@dataclass(slots=True)
class Block:
    """``tokens`` (whole pages) that prompts share from the first to the last.

    ``users`` are the prompts that contain it, ``makers`` those behind which it was generated, by
    number. ``depth`` is the number of tokens before it. Not ``hittable``: it ends all of its prompts.
    """

    tokens: int
    depth: int
    users: list[int]
    makers: list[int]
    hittable: bool = True


@dataclass(slots=True)
class _Node:
    start: int
    tokens: int
    users: list[int] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)
    enders: int = 0
    children: dict[bytes, _Node] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + self.tokens


def path_blocks(prompts: Sequence[Prompt], page_size: int = 1) -> list[Block]:
    """Blocks of the trie of all prompts and what was generated: one front, one block.

    ValueError if one atom has two lengths: then equal tokens would have two names.
    """
    root = _Node(0, 0)
    nodes: list[_Node] = []
    for number, prompt in enumerate(prompts):
        node = root
        for atom in prompt.path:
            node = _step(node, atom, nodes)
            if node.tokens and (not node.users or node.users[-1] != number):
                node.users.append(number)
        node.enders += 1
        for atom in prompt.output:
            node = _step(node, atom, nodes)
            if node.tokens:
                node.makers.append(number)
    return [block for node in nodes for block in _whole_pages(node, page_size)]


def _step(node: _Node, atom: Atom, nodes: list[_Node]) -> _Node:
    if not atom.tokens:
        return node
    child = node.children.get(atom.id)
    if child is None:
        child = node.children[atom.id] = _Node(node.end, atom.tokens)
        nodes.append(child)
    elif child.tokens != atom.tokens:
        raise ValueError(f"atom {atom.id!r} has {child.tokens} tokens here, {atom.tokens} there")
    return child


def _whole_pages(node: _Node, page_size: int) -> Iterable[Block]:
    """A node's whole pages; those that hold the last token of a prompt are a block of their own.

    That block is hit only by prompts that go on behind it: whoever ends there computes it again.
    """
    start = node.start - node.start % page_size
    end = node.end - node.end % page_size
    front_end = end
    if node.enders:
        front_end = max(start, (node.end - 1) - (node.end - 1) % page_size)
    if front_end > start:
        yield Block(front_end - start, start, node.users, node.makers)
    if end > front_end:
        goes_on = len(node.users) > node.enders
        yield Block(end - front_end, front_end, node.users, node.makers, hittable=goes_on)


def segment_blocks(prompts: Sequence[Prompt]) -> list[Block]:
    """One block for each piece of text wherever it stands: as if a cache needed no exact front."""
    blocks: dict[tuple[bytes, int], Block] = {}
    for number, prompt in enumerate(prompts):
        for made, atoms in ((False, prompt.path), (True, prompt.output)):
            times: Counter[bytes] = Counter()
            for atom in atoms:
                place = (atom.id, times[atom.id])
                times[atom.id] += 1
                block = blocks.get(place)
                if block is None:
                    block = blocks[place] = Block(atom.tokens, 0, [], [])
                (block.makers if made else block.users).append(number)
    return [block for block in blocks.values() if block.tokens]
