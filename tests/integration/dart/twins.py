"""The same prompts and operations for our reference tree and for SGLang's caches; what goes must agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from loadgen.bench.tree_arms import CacheDriver, CacheRequest, build_cache
from prism_ray.dart import Anchor, AnchorMark, Node, PrefixCache, skeleton_marks
from prism_ray.dart.node import GENERATED, PRIVATE, Piece
from prism_ray.model import Atom, Demand, DemandTable, Segment, Skeleton

SYSTEM = Segment(b"sys", 5)
DOCS = [Segment(bytes([n]), 3 + n, run=0) for n in range(6)]
GAP = Atom(b"gap", 2)
NAMES = {b"sys": 1, b"gap": 2} | {d.id: 10 + n for n, d in enumerate(DOCS)}


def tokens_of(path: tuple[Atom, ...]) -> list[int]:
    """Token ids that are equal exactly where the atoms are, whatever their extra key."""
    return tokens_in([Piece(atom.id, 0, atom.tokens) for atom in path])


def tokens_in(pieces: Sequence[Piece]) -> list[int]:
    ids = []
    for piece in pieces:
        name = NAMES.setdefault(piece.id.partition(b"|")[0], 100 + len(NAMES))
        ids += [name * 1000 + piece.start + i for i in range(piece.length)]
    return ids


def skeleton(docs: list[int], private: int) -> Skeleton:
    segments = tuple(DOCS[n] for n in docs)
    return Skeleton(SYSTEM, segments, (GAP,) * len(segments), private)


@dataclass
class Prompt:
    """One prompt for both trees: atoms for ours, tokens and marks for SGLang's.

    Prompts with different ``extra`` share nothing, by SGLang's extra key, though tokens and marks are
    the same; our tree knows them by other atoms.
    """

    docs: list[int]
    name: bytes
    answer: int = 0
    marked: bool = True
    extra: str = ""
    path: tuple[Atom, ...] = field(init=False)
    marks: tuple[AnchorMark, ...] = field(init=False)

    def __post_init__(self) -> None:
        shape = skeleton(self.docs, 3)
        self.path = self._own(*shape.path(shape.native_order), Atom(b"q" + self.name, 3))
        self.marks = skeleton_marks(shape, shape.native_order) if self.marked else ()

    def _own(self, *atoms: Atom) -> tuple[Atom, ...]:
        return tuple(Atom(b"|".join((a.id, self.extra.encode())), a.tokens) for a in atoms)

    @property
    def whole(self) -> tuple[Atom, ...]:
        return (*self.path, *self._own(Atom(b"a" + self.name, self.answer)))

    def request(self, **hints: Any) -> CacheRequest:
        hints["extra_key"] = self.extra or None
        return CacheRequest(self.name.hex(), tokens_of(self.path), self.marks, **hints)

    def anchors(self) -> list[Anchor]:
        prompt = sum(a.tokens for a in self.path)
        known = [Anchor(m.offset_tokens, m.owner) for m in self.marks]
        return [*known, Anchor(prompt, PRIVATE), Anchor(prompt + self.answer, GENERATED)]


class Twins:
    """The same operations on our reference tree and on SGLang's."""

    def __init__(self, retention: str, page: int) -> None:
        sizes = {"protect_anchors": 2, "protect_share": 0.3}
        self.sglang = build_cache(
            "dart", 4000, page_size=page, context=128, retention=retention, **sizes
        )
        self.ours = PrefixCache(retention, pool_tokens=4000, page_size=page, **sizes)
        self.driver = CacheDriver(self.sglang)
        self.held: list[tuple[CacheRequest, Any]] = []
        self.waiting: list[tuple[CacheRequest, Prompt]] = []
        self.gone: list[tuple[int, int, int]] = []
        count = self.sglang.tree_core.evicted
        self.sglang.tree_core.evicted = lambda node: (self.gone.append(facts(node)), count(node))
        self.page = page

    def start(self, prompt: Prompt, **hints: Any) -> CacheRequest:
        request = prompt.request(**hints)
        if "demand" in hints:
            table = hints["demand"]
            rows = tuple(Demand(bytes.fromhex(k), p, n) for k, p, n in table["rows"])
            self.ours.hint(DemandTable(table["version"], rows))
        self.ours.observe_request()
        self.admit(request, prompt)
        return request

    def admit(self, request: CacheRequest, prompt: Prompt) -> None:
        assert self.driver.admit(request)
        matched = self.ours.match(prompt.path)
        assert matched.tokens == request.prefix_len
        self.ours.waits_no_more(request.rid)
        self.driver.prefill(request)
        self.ours.insert(prompt.path, anchors=prompt.anchors())

    def wait(self, prompt: Prompt) -> None:
        request = prompt.request()
        self.ours.observe_request()
        self.driver.match(request)
        self.ours.match(prompt.path)
        self.ours.waits(request.rid, [mark.path_key for mark in prompt.marks])
        self.waiting.append((request, prompt))

    def give_up(self, index: int) -> None:
        request, _ = self.waiting.pop(index % len(self.waiting))
        self.driver.give_up(request)
        self.ours.waits_no_more(request.rid)

    def let_in(self, index: int) -> None:
        request, prompt = self.waiting.pop(index % len(self.waiting))
        self.admit(request, prompt)
        self.finish(request, prompt)

    def serve(self, prompt: Prompt, **hints: Any) -> None:
        self.finish(self.start(prompt, **hints), prompt)

    def finish(self, request: CacheRequest, prompt: Prompt) -> None:
        assert self.driver.generate(request, tokens_of(prompt.whole[-1:]))
        self.driver.finish(request)
        counted = sum(a.tokens for a in prompt.path) // self.page * self.page
        self.ours.insert(prompt.whole, anchors=prompt.anchors(), counted_tokens=counted)
        if prompt.answer:  # SGLang then inserts the prompt by itself, which cuts at its end
            self.ours.insert(prompt.path, anchors=prompt.anchors(), counted_tokens=counted)

    def hold(self, prompt: Prompt) -> None:
        request = self.start(prompt)
        node = self.ours.match(prompt.path, sum(a.tokens for a in prompt.path)).node
        self.ours.lock(node)
        self.held.append((request, node))

    def release(self, index: int) -> None:
        request, node = self.held.pop(index % len(self.held))
        self.driver.drop(request)
        self.ours.unlock(node)

    def evict(self, tokens: int) -> None:
        self.gone.clear()
        self.sglang.evict(EvictParams(num_tokens=tokens))
        evicted = self.ours.evict(tokens)
        assert self.gone == [facts(node) for node in evicted.nodes]

    def check(self) -> None:
        self.ours.check_integrity()
        self.sglang.tree_core.check_integrity()
        theirs = sorted((*facts(n), n.protected) for n in self.sglang.tree_core.nodes())
        assert theirs == sorted((*facts(n), n.protected) for n in self.ours.tree)


def facts(node: Any) -> tuple[int, int, int, bytes, bytes]:
    """What a node is in either tree, without its identity."""
    return node.start, node.end, int(node.kind), node.segment or b"", node.path_key or b""


Place = tuple[str | int, ...]
"""A token and all that it was computed behind: the extra key, then every id up to it."""


class PlacedSlots(CacheDriver):
    """A driver that remembers which token of which prompt each slot of the pool was given to."""

    def __init__(self, cache: Any) -> None:
        super().__init__(cache)
        self.place_of: dict[int, Place] = {}

    def _extend(self, request: CacheRequest, end: int) -> bool:
        if not super()._extend(request, end):
            return False
        slots = self._pool.req_to_token[request.kv.req_pool_idx][:end].tolist()
        ids = request.full_untruncated_fill_ids[:end]
        for slot, place in zip(slots, places(request.extra_key or "", ids), strict=True):
            self.place_of[slot] = place
        return True


class StockTwins(Twins):
    """The same operations on our reference tree and on one of SGLang's own tree cores, both LRU.

    SGLang's cores tell nobody which node they evict. Here they evict one leaf at a time, and what has
    gone is known by its slots.
    """

    driver: PlacedSlots

    def __init__(self, core: str, page: int) -> None:
        self.sglang = build_cache(core, 4000, page_size=page, context=128)
        self.ours = PrefixCache("lru", pool_tokens=4000, page_size=page)
        self.driver = PlacedSlots(self.sglang)
        self.held = []
        self.waiting = []
        self.page = page
        self.evicted_leaves = 0

    def evict(self, tokens: int) -> None:
        left = tokens
        while left > 0 and (order := self.ours.eviction_order()):
            (node, *_), before = order, self._slots()
            expected = places_of_node(node)
            self.sglang.evict(EvictParams(num_tokens=1))
            assert {self.driver.place_of[slot] for slot in before - self._slots()} == expected
            left -= self.ours.evict(1).tokens
            self.evicted_leaves += 1

    def _slots(self) -> set[int]:
        return set(self.sglang.all_values_flatten().tolist())

    def check(self) -> None:
        self.sglang.sanity_check()
        assert self.sglang.evictable_size() == self.ours.tree.evictable_tokens
        assert len(self._slots()) == self.ours.tree.total_tokens


def places(extra: str, ids: Sequence[int]) -> list[Place]:
    return [(extra, *ids[: end + 1]) for end in range(len(ids))]


def places_of_node(node: Node) -> set[Place]:
    path = node.path()
    extra = path[0].id.partition(b"|")[2].decode()
    return set(places(extra, tokens_in(path))[node.start :])
