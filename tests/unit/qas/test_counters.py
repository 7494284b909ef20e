"""G, A and ranks count sets, are forgotten at zero, and leave no trace."""

from __future__ import annotations

from prism_ray.model import Segment
from prism_ray.qas.counters import SegmentCounters
from prism_ray.qas.priority import Weights

WEIGHTS = Weights(active=100.0, next=10.0, queued=1.0)


def segments(letters: str) -> list[Segment]:
    return [Segment(letter.encode(), 10, label=letter.upper()) for letter in letters]


def test_a_segment_written_twice_counts_once() -> None:
    counters = SegmentCounters(WEIGHTS)
    slots, numbers = counters.enqueue(segments("aba"))
    assert len(slots) == 3
    assert slots[0] == slots[2]
    assert len(numbers) == 2
    assert [counters.counts(number) for number in numbers] == [(0, 1), (0, 1)]


def test_priority_follows_a_request_from_queued_to_active_to_gone() -> None:
    counters = SegmentCounters(WEIGHTS)
    _, numbers = counters.enqueue(segments("a"))
    _, both = counters.enqueue(segments("a"))
    (number,) = numbers
    counters.flush()
    assert counters.priority[number] == 2.0
    counters.send(numbers)
    counters.flush()
    assert counters.priority[number] == 101.0
    assert counters.queued_priority[number] == 1.0
    counters.finish(numbers)
    counters.dequeue(both)
    assert len(counters) == 0
    counters.check_integrity([], [], [])


def test_equal_priorities_sort_by_who_was_seen_first() -> None:
    counters = SegmentCounters(WEIGHTS)
    _, first = counters.enqueue(segments("ba"))
    _, second = counters.enqueue(segments("ab"))
    counters.flush()
    assert first == second, "numbers come by rank, not as written"
    low, high = counters.sort_keys(first)
    assert low < high
    assert low[0] == high[0]


def test_a_forgotten_segment_comes_back_as_the_newest() -> None:
    counters = SegmentCounters(WEIGHTS)
    _, old = counters.enqueue(segments("a"))
    _, other = counters.enqueue(segments("b"))
    counters.dequeue(old)
    _, again = counters.enqueue(segments("a"))
    counters.flush()
    assert counters.sort_keys(again) > counters.sort_keys(other)


def test_a_segment_that_is_still_active_keeps_its_rank() -> None:
    counters = SegmentCounters(WEIGHTS)
    _, old = counters.enqueue(segments("a"))
    _, other = counters.enqueue(segments("b"))
    counters.send(old)
    counters.enqueue(segments("a"))
    counters.finish(old)
    counters.flush()
    assert counters.sort_keys(old) < counters.sort_keys(other)


def test_a_kept_segment_keeps_its_number_and_its_rank() -> None:
    counters = SegmentCounters(WEIGHTS)
    _, kept = counters.enqueue(segments("a"))
    _, other = counters.enqueue(segments("b"))
    counters.keep(kept)
    counters.dequeue(kept)
    assert len(counters) == 2
    _, again = counters.enqueue(segments("a"))
    assert again == kept
    counters.flush()
    assert counters.sort_keys(again) < counters.sort_keys(other)
    counters.dequeue(again)
    counters.release(kept)
    assert len(counters) == 1
    _, later = counters.enqueue(segments("a"))
    counters.flush()
    assert counters.sort_keys(later) > counters.sort_keys(other)


def test_numbers_are_recycled_so_that_arrays_do_not_grow_with_history() -> None:
    counters = SegmentCounters(WEIGHTS)
    for i in range(10_000):
        _, numbers = counters.enqueue([Segment(str(i).encode(), 1, label="x")])
        counters.send(numbers)
        counters.finish(numbers)
    assert len(counters.ids) == 2
    assert counters.ids == [b"", b""]
    assert counters.labels == ["", ""]
    counters.check_integrity([], [], [])
