"""DART's tree core for SGLang: SGLang's Python core with owned spans and a heap of its leaves.

Registered through SGLang's public registries of tree cores and components; nothing of SGLang is
changed. Full-attention models on the device only: the plugin refuses everything else at start. What is
overridden here is listed, and its signatures checked, in ``tests/integration/dart/test_hooks.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, InsertResult
from sglang.srt.mem_cache.unified_cache.cache_action import FreeDeviceKV
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE, FullComponent
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore, UnifiedTreeNode
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import InsertStepResult

from prism_ray.dart.index import OwnerIndex
from prism_ray.dart.lazy_heap import LazyLeafHeap
from prism_ray.dart.node import PRIVATE, Anchor, NodeKind, Owner, owned_spans
from prism_ray.dart.retention import Key, Lru, RetentionStrategy

_FULL = BASE_COMPONENT_TYPE


class DartNode(UnifiedTreeNode):  # type: ignore[misc]
    """SGLang's node and who owns its tokens; also a NodeView. Freed with SGLang's own bookkeeping.

    ``start`` is the number of tokens above it. On a split both parts keep the owner, and the lower
    part keeps the boundary and the node's id.
    """

    def __init__(self, tree_components: Any, priority: int = 0) -> None:
        super().__init__(tree_components, priority=priority)
        self.start = 0
        self.owner = PRIVATE
        self.span_start = 0
        self.anchored = False
        self.protected = False
        self.queued_key: Key | None = None

    @property
    def serial(self) -> int:
        return int(self.id)

    @property
    def tokens(self) -> int:
        return len(self.key.token_ids)  # the key of a node is never a view with a limit

    @property
    def end(self) -> int:
        return self.start + len(self.key.token_ids)

    @property
    def kind(self) -> NodeKind:
        return self.owner.kind

    @property
    def segment(self) -> bytes | None:
        return self.owner.segment

    @property
    def path_key(self) -> bytes | None:
        return self.owner.path_key

    @property
    def last_access(self) -> int:
        return self.last_access_time  # type: ignore[no-any-return]

    @property
    def hits(self) -> int:
        return self.hit_count  # type: ignore[no-any-return]

    def ancestors(self) -> Iterator[DartNode]:
        """This node and all above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class DartTreeCore(UnifiedTreeCore):  # type: ignore[misc]
    """SGLang's tree whose inserts cut and own spans in the walk they take anyway.

    ``anchors`` are those of the request whose prompt is being inserted. ``before_eviction`` runs once
    at the start of each eviction, ``evicted`` for every node that leaves the tree.
    """

    def __init__(self, params: Any, components: Any) -> None:
        self.index: OwnerIndex[DartNode] = OwnerIndex()
        self.strategy: RetentionStrategy = Lru()
        self.leaves: LazyLeafHeap[DartNode] = LazyLeafHeap(self.key_of)
        self.anchors: Sequence[Anchor] = ()
        self.inserted_tokens = 0
        self.before_eviction: Callable[[], None] = lambda: None
        self.evicted: Callable[[DartNode], None] = lambda node: None
        super().__init__(params, components)
        self.eviction_strategy = self

    def key_of(self, node: DartNode) -> Key:
        return self.strategy.key(node)

    def get_priority(self, node: DartNode) -> Key:
        """SGLang's EvictionStrategy, for what asks for it beside our own eviction."""
        return self.strategy.key(node)

    # Nodes

    def reset(self) -> None:
        self.leaves = LazyLeafHeap(self.key_of)
        self.index.clear()
        super().reset()

    def _new_node(self, priority: int = 0) -> DartNode:
        node = DartNode(self.component_types, priority=priority)
        self._register_node(node)
        return node

    def _unregister_node(self, node: DartNode) -> None:
        super()._unregister_node(node)
        node.queued_key = None
        self.index.remove(node)
        node.protected = False
        self.evicted(node)

    def _update_evictable_leaf_sets(self, node: DartNode) -> None:
        # SGLang's own, for a tree without a host tier: every node has its value, no host leaf exists.
        if node.children or node is self.root_node or node.component_data[_FULL].lock_ref > 0:
            self.evictable_device_leaves.discard(node)
        elif node.component_data[_FULL].value is not None:
            self.evictable_device_leaves.add(node)
            self.leaves.offer(node)
        else:
            self.evictable_device_leaves.discard(node)

    def _split_node(self, key: Any, child: DartNode, split_len: int) -> tuple[DartNode, Any]:
        accessed = child.last_access_time
        self.index.shrink(child, split_len)
        upper, action = super()._split_node(key, child, split_len)
        upper.start, upper.owner, upper.span_start = child.start, child.owner, child.span_start
        upper.protected = child.protected
        child.start += split_len
        self.index.add(upper)
        if self.strategy.uses_anchors:
            # SGLang dates the lower part to now; who cut it has not read it.
            upper.last_access_time = child.last_access_time = accessed
        self.rekey((upper, child))
        return upper, action

    def rekey(self, nodes: Iterable[DartNode]) -> None:
        """What the strategy knows about these nodes has changed."""
        for node in nodes:
            if node in self.evictable_device_leaves:
                self.leaves.offer(node)

    # Inserting

    def begin_insert(self, params: InsertParams) -> InsertStepResult:
        """Insert in one walk, cut at the anchors. Where SGLang slices the rest of the key at every
        node, which is quadratic in a path of many anchors, this looks at an offset."""
        key = params.key.page_aligned(self.page_size)
        end = len(key)
        value = params.value
        value = torch.tensor(key.token_ids[:end]) if value is None else value[:end]
        self._touch_node(self.root_node)
        self.root_node.priority = max(self.root_node.priority, params.priority or 0)
        result = InsertResult(prefix_len=0, mamba_exist=end == 0)
        node, position = self.root_node, 0
        anchors = self.anchors if self.strategy.uses_anchors else ()
        for stop, owner, anchored in owned_spans(anchors, end, self.page_size):
            span_start = position
            while position < stop:
                child = node.children.get(key.child_key_at(position, self.page_size))
                if child is None:
                    child = self._grow(node, key, value, stop, owner, params)
                else:
                    child = self._pass(child, key, stop, params)
                    result.prefix_len = child.end
                self._own(child, owner, span_start, anchored=anchored and child.end == stop)
                position, node = child.end, child
        result.last_device_node = node.id
        self.inserted_tokens = max(self.inserted_tokens, end)
        self.leaves.compact(len(self._node_arena), lambda: self.evictable())
        # What the tree had already and the request computed again is the request's to give back.
        twice = value[params.prev_prefix_len : result.prefix_len]
        actions = [FreeDeviceKV([twice])] if len(twice) else []
        return InsertStepResult(actions=actions, result=result)

    def _pass(self, child: DartNode, key: Any, stop: int, params: InsertParams) -> DartNode:
        """Walk over an edge, cut where the key or its span leaves it."""
        if child.end <= params.prev_prefix_len:
            # The tree owns this front already, locked by the request: its tokens need no comparing.
            common = child.tokens
        else:
            common = child.key.match_at(key, child.start, self.page_size)
        common = min(common, stop - child.start)
        if common < child.tokens:
            child, _ = self._split_node(child.key, child, common)
        self._touch_node(child)
        child.priority = max(child.priority, params.priority or 0)
        if child.end > params.inserted_len:
            self._inc_hit_count_and_check(child)
        return child

    def _grow(
        self,
        parent: DartNode,
        key: Any,
        value: torch.Tensor,
        stop: int,
        owner: Owner,
        params: InsertParams,
    ) -> DartNode:
        start = parent.end
        child: DartNode = self._add_new_node(
            parent,
            key[start:stop],
            value[start:stop],
            priority=params.priority or 0,
            session_id=params.session_id,
            rotation_base=params.rotation_base,
        )
        child.start = start
        self.index.add(child)
        if stop > params.inserted_len:
            self._inc_hit_count_and_check(child)
        return child

    def _own(self, node: DartNode, owner: Owner, span_start: int, *, anchored: bool) -> None:
        node.anchored = node.anchored or anchored
        if owner == node.owner or owner.kind < node.owner.kind:
            return
        node.protected = False
        self.index.change_owner(node, owner, span_start)
        self.rekey((node,))

    def evictable(self) -> list[DartNode]:
        """The leaves that could go now, in the order in which they were made."""
        return sorted(self.evictable_device_leaves, key=lambda node: node.serial)

    # Looking

    def nodes(self) -> Iterator[DartNode]:
        """All nodes but the root, parents first, in a fixed order."""
        stack = [self.root_node]
        while stack:
            node = stack.pop()
            if node is not self.root_node:
                yield node
            stack.extend(reversed(node.children.values()))

    def check_integrity(self) -> None:
        """Raise AssertionError if an offset, the index or the heap differs from a recount."""
        for node in self.nodes():
            assert node.start == node.parent.end, f"node {node.id} starts at {node.start}"
            assert 0 <= node.span_start <= node.start
            if node in self.evictable_device_leaves:
                assert node.queued_key is not None, f"node {node.id} is not in the heap"
                assert node.queued_key <= self.key_of(node), f"node {node.id} waits too long"
        self.index.check_integrity(self.nodes())


class DartFullComponent(FullComponent):  # type: ignore[misc]
    """Eviction in the order of the core's own heap, instead of one rebuilt from all leaves a call."""

    def reclaimable_value_len(self, node: DartNode) -> int:
        """SGLang's own asks the tensor for its length, at every node of every lock and unlock."""
        return node.tokens

    def _evict_device_start(self, request_cnt: int) -> None:
        self._evict_device_request_cnt = request_cnt
        self.tree_core.before_eviction()

    def _evict_device_next_node(
        self, tracker: Any, device_frees: Any, host_frees: Any, cache_actions: Any
    ) -> int | None:
        if tracker[_FULL] >= self._evict_device_request_cnt:
            return None
        leaves = self.tree_core.evictable_device_leaves
        node = self.tree_core.leaves.pop(leaves.__contains__)
        return None if node is None else node.id

    def _evict_device_end(self) -> None:
        self._evict_device_request_cnt = 0
