"""The lazy heap gives the smallest key of now, although touching a node tells it nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from prism_ray.dart.lazy_heap import LazyLeafHeap


@dataclass(eq=False)
class Leaf:
    serial: int
    value: int
    taken: bool = False
    queued_key: tuple[float, ...] | None = None


moves = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9)),
        st.tuples(st.just("grow"), st.integers(0, 99), st.integers(1, 9)),
        st.tuples(st.just("shrink"), st.integers(0, 99), st.integers(1, 9)),
        st.tuples(st.just("lock"), st.integers(0, 99)),
        st.tuples(st.just("unlock"), st.integers(0, 99)),
        st.tuples(st.just("compact"), st.just(0)),
        st.tuples(st.just("pop"), st.just(0)),
    ),
    max_size=60,
)


@given(moves)
def test_it_pops_what_a_search_through_all_leaves_finds(moves):
    heap: LazyLeafHeap[Leaf] = LazyLeafHeap(lambda leaf: (leaf.value,))
    leaves: list[Leaf] = []
    locked: list[Leaf] = []

    def takeable(leaf: Leaf) -> bool:
        return leaf in leaves

    for serial, (name, first, *rest) in enumerate(moves):
        if name == "add":
            leaves.append(Leaf(serial, first))
            heap.offer(leaves[-1])
        elif name == "unlock" and locked:
            leaves.append(locked.pop(first % len(locked)))
            heap.offer(leaves[-1])
        elif name == "compact":
            heap.compact(-100, lambda: leaves)
        elif name == "pop":
            expected = min(leaves, key=lambda leaf: (leaf.value, leaf.serial), default=None)
            assert heap.pop(takeable) is expected
            if expected is not None:
                leaves.remove(expected)
        elif leaves and name in ("grow", "shrink", "lock"):
            leaf = leaves[first % len(leaves)]
            if name == "lock":
                leaves.remove(leaf)
                locked.append(leaf)
            elif name == "grow":
                leaf.value += rest[0]
            else:
                leaf.value -= rest[0]
                heap.offer(leaf)


def test_compacting_bounds_what_outdated_entries_hold():
    heap: LazyLeafHeap[Leaf] = LazyLeafHeap(lambda leaf: (leaf.value,))
    leaf = Leaf(0, 1_000)
    for _ in range(500):
        leaf.value -= 1
        heap.offer(leaf)
        heap.compact(1, lambda: [leaf])
    assert len(heap) <= 2 + 64 + 1
