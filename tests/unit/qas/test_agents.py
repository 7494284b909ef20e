"""Agents: every prompt of an application has its policy and tools, so signatures look beyond them."""

from __future__ import annotations

import pytest

from prism_ray.model import NO_GAP, Atom, Segment, SegmentKind, Signature, Skeleton, Ticket
from prism_ray.qas import Qas
from prism_ray.scheduling import Match

TOOLS = tuple(Segment(name, 50, SegmentKind.TOOL) for name in (b"search", b"book"))
SYSTEM = Segment(b"policy", 100, SegmentKind.SYSTEM)


class Cold:
    def match(self, path: tuple[Atom, ...]) -> Match:
        return Match(0, 0)


def ticket(name: str, *turns: bytes, tools: tuple[Segment, ...] = TOOLS) -> Ticket:
    segments = (*tools, *(Segment(turn, 40, SegmentKind.TURN) for turn in turns))
    gaps = (Atom(b"header", 5),) * len(segments)
    return Ticket(name, Skeleton(SYSTEM, segments, gaps, 20), 0.0)


def signatures(params: dict[str, object], *tickets: Ticket) -> dict[str, Signature]:
    """What each request was grouped by, all dispatched in one round."""
    qas = Qas(params)
    for each in tickets:
        qas.add(each)
    round_ = qas.open_round({"r": Cold()})
    found = {}
    while (pick := round_.peek("r")) is not None:
        found[pick.ticket.request_id] = pick.signature
        round_.take("r", pick)
    round_.close()
    qas.check_integrity()
    return found


REQUESTS = (
    ticket("a1", b"case a", b"lookup 1"),
    ticket("b1", b"case b", b"lookup 2"),
    ticket("a2", b"case a", b"lookup 3"),
    ticket("b2", b"case b", b"lookup 4"),
)


@pytest.mark.parametrize("kappa", [1, 2])
def test_requests_are_grouped_by_the_hottest_segments_beyond_the_tools(kappa: int) -> None:
    found = signatures({"kappa": kappa}, *REQUESTS)
    assert {name: signature[0] for name, signature in found.items()} == {
        "a1": b"case a",
        "a2": b"case a",
        "b1": b"case b",
        "b2": b"case b",
    }


def test_by_any_segment_they_would_all_be_one_group() -> None:
    found = signatures({"signature_segments": "any"}, *REQUESTS)
    assert set(found.values()) == {(b"search",)}


def test_a_request_with_nothing_beyond_its_tools_is_grouped_by_them() -> None:
    assert signatures({}, ticket("a"), ticket("b")) == {"a": (b"search",), "b": (b"search",)}


def test_what_is_forgotten_may_come_back_as_something_else() -> None:
    qas = Qas({"memory_requests": 0, "batch_max": 2, "q_cold": 0})
    qas.add(ticket("a", b"case"))
    qas.cancel("a")
    for name in ("b", "c"):
        turns = (name.encode(), b"common", name.encode() * 2)
        qas.add(ticket(name, *turns, tools=()))
    round_ = qas.open_round({"r": Cold()})
    pick = round_.peek("r")
    assert pick is not None
    assert pick.signature == (b"common",)


class TestGlobalPrefix:
    def test_it_is_the_system_and_the_fixed_tools_behind_it(self) -> None:
        skeleton = ticket("a", b"case").skeleton
        assert (skeleton.global_slots, skeleton.global_tokens) == (2, 100 + 55 + 55)

    def test_it_ends_where_something_else_stands(self) -> None:
        turn, tool = Segment(b"t", 40, SegmentKind.TURN), TOOLS[0]
        skeleton = Skeleton(SYSTEM, (tool, turn, tool), (NO_GAP,) * 3, 1)
        assert (skeleton.global_slots, skeleton.global_tokens) == (1, 150)

    def test_tools_that_may_move_are_no_part_of_it(self) -> None:
        tools = tuple(Segment(t.id, 50, SegmentKind.TOOL, run=0) for t in TOOLS)
        skeleton = Skeleton(None, tools, (NO_GAP,) * 2, 1)
        assert (skeleton.global_slots, skeleton.global_tokens) == (0, 0)

    def test_without_turns_it_is_all_but_the_private_rest(self) -> None:
        skeleton = ticket("a").skeleton
        assert skeleton.global_tokens == skeleton.prompt_tokens - skeleton.private_tokens
