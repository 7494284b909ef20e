"""Which resident nodes belong to which segment and place; knows no tree and evicts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from prism_ray.dart.anchors import AnchorMark, CacheObserver, PathKey
from prism_ray.dart.node import NodeKind, Owner


class OwnedNode(Protocol):
    """What the index needs of a node, of our tree or of an engine's."""

    owner: Owner
    span_start: int

    @property
    def serial(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


N = TypeVar("N", bound=OwnedNode)


class OwnerIndex(Generic[N]):
    """Nodes by segment and by path key, and the system prefixes; tells an observer what a place loses.

    The nodes of one path key lie below each other, so a place is resident from its span's start to the
    lowest end among them. All dicts are ordered by insertion: equal histories give equal orders.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, dict[int, N]] = {}
        self._places: dict[PathKey, dict[int, N]] = {}
        self._system: dict[int, N] = {}
        self.system_tokens = 0
        self.observer: CacheObserver | None = None

    def clear(self) -> None:
        self._by_key.clear()
        self._places.clear()
        self._system.clear()
        self.system_tokens = 0
        if self.observer is not None:
            self.observer.flushed()

    def nodes_of(self, key: bytes) -> Iterable[N]:
        """Nodes of a segment or of a path key, in the order in which they came to be its own."""
        return (self._by_key.get(key) or self._places.get(key) or {}).values()

    def system_nodes(self) -> Iterable[N]:
        return self._system.values()

    def places(self) -> Iterator[tuple[PathKey, int, int]]:
        """(path key, start, end) of what is resident of every place, in tokens of its prompt."""
        for key, nodes in self._places.items():
            own = nodes.values()
            yield key, min(n.span_start for n in own), max(n.end for n in own)

    def add(self, node: N) -> None:
        """Take a node in under its owner."""
        kind, segment, path_key = node.owner
        if segment is not None:
            self._by_key.setdefault(segment, {})[node.serial] = node
        if path_key is not None:
            self._places.setdefault(path_key, {})[node.serial] = node
        if kind == NodeKind.SYSTEM:
            self._system[node.serial] = node
            self.system_tokens += node.end - node.start

    def change_owner(self, node: N, owner: Owner, span_start: int) -> None:
        """Give a node's tokens, which stay resident, to another owner."""
        self._discard(node)
        self._tell(node, gone=False)
        node.owner, node.span_start = owner, span_start
        self.add(node)

    def remove(self, node: N) -> None:
        """A node was evicted."""
        self._discard(node)
        self._tell(node, gone=True)

    def inserted(self, marks: Iterable[AnchorMark], resident_tokens: int) -> None:
        """Tell the observer of an insertion, which is indexed already.

        Tokens of a span that stayed with an owner of a larger kind are not its place's: the observer
        hears of them without a key, for it would never hear of their eviction.
        """
        if self.observer is not None:
            self.observer.inserted(tuple(self._own_parts(marks, resident_tokens)), resident_tokens)

    def _own_parts(self, marks: Iterable[AnchorMark], resident_tokens: int) -> Iterator[AnchorMark]:
        for mark in marks:
            own = self._places.get(mark.path_key) if mark.path_key is not None else None
            if own is None:
                yield mark._replace(path_key=None)
                continue
            end = max(node.end for node in own.values())
            if end < min(mark.offset_tokens, resident_tokens):
                yield mark._replace(offset_tokens=end)
                yield mark._replace(path_key=None)
            else:
                yield mark

    def shrink(self, node: N, tokens: int) -> None:
        """``tokens`` of a node became a node of their own, which ``add`` counts."""
        if node.owner.kind == NodeKind.SYSTEM:
            self.system_tokens -= tokens

    def _discard(self, node: N) -> None:
        kind, segment, path_key = node.owner
        for table, key in ((self._by_key, segment), (self._places, path_key)):
            if key is not None:
                del table[key][node.serial]
                if not table[key]:
                    del table[key]
        if kind == NodeKind.SYSTEM:
            del self._system[node.serial]
            self.system_tokens -= node.end - node.start

    def _tell(self, node: N, *, gone: bool) -> None:
        if self.observer is None:
            return
        path_key = node.owner.path_key
        if path_key is None:
            if gone:
                self.observer.evicted(None, node.owner.kind, node.start, node.end)
            return
        rest = self._places.get(path_key, {}).values()
        kept = max((other.end for other in rest), default=node.span_start)
        if kept < node.end:
            self.observer.evicted(path_key, node.owner.kind, kept, node.end)

    def check_integrity(self, nodes: Iterable[N]) -> None:
        """Raise AssertionError if the index differs from a recount over all resident nodes."""
        segments = places = system = 0
        for node in nodes:
            kind, segment, path_key = node.owner
            if segment is not None:
                segments += 1
                assert self._by_key[segment][node.serial] is node
            if path_key is not None:
                places += 1
                assert self._places[path_key][node.serial] is node
            if kind == NodeKind.SYSTEM:
                system += node.end - node.start
                assert self._system[node.serial] is node
        assert segments == sum(map(len, self._by_key.values()))
        assert places == sum(map(len, self._places.values()))
        assert system == self.system_tokens
