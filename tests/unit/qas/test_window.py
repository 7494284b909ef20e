"""The window shows the oldest requests in queue order whatever comes, leaves and returns."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.qas.window import Entry, Window

from .scenes import ticket


def entry(name: str, *numbers: int) -> Entry:
    return Entry(ticket(name, ""), numbers, numbers)


def shown(window: Window) -> list[str]:
    window.refresh()
    return [window.entry(column).ticket.request_id for column in range(window.columns)]


def test_the_backlog_moves_up_when_the_window_has_room() -> None:
    window = Window(2)
    for name in "abc":
        window.add(entry(name))
    assert shown(window) == ["a", "b"]
    window.remove("a")
    assert shown(window) == ["b", "c"]


def test_a_request_at_the_head_pushes_the_youngest_out_and_back_into_line() -> None:
    window = Window(2)
    for name in "abc":
        window.add(entry(name))
    assert shown(window) == ["a", "b"]
    window.add(entry("z"), at_head=True)
    assert shown(window) == ["z", "a"]
    assert [e.ticket.request_id for e in window] == ["z", "a", "b", "c"]


def test_several_at_the_head_stand_last_in_first() -> None:
    window = Window(2)
    for name in "xyz":
        window.add(entry(name), at_head=True)
    assert shown(window) == ["z", "y"]
    assert [e.ticket.request_id for e in window] == ["z", "y", "x"]


def test_an_unchanged_window_keeps_its_version() -> None:
    window = Window(2)
    for name in "abc":
        window.add(entry(name, 1))
    window.refresh()
    version = window.version
    window.add(entry("d", 2))
    window.refresh()
    assert window.version == version, "the backlog is not part of the window"
    window.remove("b")
    window.refresh()
    assert window.version > version


def test_a_cancelled_backlog_leaves_nothing_behind() -> None:
    window = Window(1)
    window.add(entry("first"))
    window.refresh()
    for i in range(1_000):
        window.add(entry(f"q{i}"))
        assert window.remove(f"q{i}") is not None
    assert window.remove("q1") is None
    assert len(window) == 1
    assert not window._backlog


def test_a_long_request_costs_rows_only_while_it_is_in_the_window() -> None:
    window = Window(4)
    window.add(entry("long", *range(1, 51)))
    window.add(entry("short", 1))
    window.refresh()
    assert len(window.numbers) == 50
    window.remove("long")
    window.refresh()
    window.add(entry("other", 2))
    window.refresh()
    assert len(window.numbers) == 1


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from("abhr"), st.integers(0, 99))))
def test_arrays_always_show_the_oldest_in_order(limit: int, steps: list[tuple[str, int]]) -> None:
    window = Window(limit)
    queue: list[str] = []
    for born, (step, value) in enumerate(steps):
        name = f"q{born}"
        numbers = tuple(range(1, 1 + value % 5))
        if step == "a":
            window.add(entry(name, *numbers))
            queue.append(name)
        elif step == "h":
            window.add(entry(name, *numbers), at_head=True)
            queue.insert(0, name)
        elif step == "r" and queue:
            assert window.remove(queue.pop(value % len(queue))) is not None
        else:
            assert shown(window) == queue[:limit]
            window.check_integrity()
    assert shown(window) == queue[:limit]
    assert [e.ticket.request_id for e in window] == queue
