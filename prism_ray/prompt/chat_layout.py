"""Which texts of a rendered conversation are system, segments and private. Pure; counts no tokens.

Slots found automatically are proposals: those that turn out short are dropped once tokens are known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

from prism_ray.model import SegmentKind
from prism_ray.prompt.conversation import Conversation, TextSite
from prism_ray.prompt.layout import Layout, Slot, make_layout
from prism_ray.prompt.locate import Place
from prism_ray.prompt.tokenizer import Trimming

Places = Sequence[Place | None]


def chat_layout(
    conversation: Conversation, rendered: str, places: Places, trimming: Trimming
) -> Layout:
    """The leading system turns are the system; marked texts, tools, other texts and turns are slots.

    The last text, unless it is marked, and all after it is private.
    """
    runs = find_runs(conversation.sites, places, trimming)
    marked = [
        Slot(place.start, place.end, SegmentKind.DOCUMENT, site.mark.label, runs.get(n), n, True)
        for n, (site, place) in enumerate(zip(conversation.sites, places, strict=True))
        if site.mark is not None and place is not None
    ]
    tools = list(_tool_slots(conversation, rendered))
    system_end = _system_end(conversation, places, marked, tools)
    texts = list(_text_slots(conversation, places))
    return make_layout(rendered, system_end, [*marked, *tools, *texts])


def find_runs(sites: Sequence[TextSite], places: Places, trimming: Trimming) -> dict[int, int]:
    """Site -> run, for the texts that may be moved: neighbours in one message share a run."""
    runs: dict[int, int] = {}
    run = -1
    previous: TextSite | None = None
    held = _held_by_blank_edges(sites, trimming)
    for number, site in enumerate(sites):
        if site.mark is None or not site.mark.reorderable or number in held or not places[number]:
            previous = None
            continue
        if previous is None or not _adjacent(previous, site):
            run += 1
        runs[number] = run
        previous = site
    return runs


def _adjacent(left: TextSite, right: TextSite) -> bool:
    same = left.message == right.message
    return same and left.part is not None and right.part == left.part + 1


def _held_by_blank_edges(sites: Sequence[TextSite], trimming: Trimming) -> set[int]:
    """Texts that the template would write differently in another slot.

    Where only a message's edges are stripped, a blank edge would vanish in the first or last slot
    and stay in the others: a text that has one, in a run that reaches that edge, keeps its place.
    """
    held: set[int] = set()
    if trimming.each_part:
        return held
    numbers = range(len(sites))
    if trimming.start:
        held |= {n for n in _reaching_edge(sites, numbers) if sites[n].text[:1].isspace()}
    if trimming.end:
        backwards = list(reversed(numbers))
        held |= {n for n in _reaching_edge(sites, backwards) if sites[n].text[-1:].isspace()}
    return held


def _reaching_edge(sites: Sequence[TextSite], numbers: Sequence[int]) -> Iterator[int]:
    """Texts with only movable or blank ones between them and the edge where ``numbers`` enter their
    message."""
    message, open_edge = -1, True
    for number in numbers:
        site = sites[number]
        if site.message != message:
            message, open_edge = site.message, True
        if open_edge:
            yield number
        movable = site.mark is not None and site.mark.reorderable
        open_edge = open_edge and (movable or not site.text.strip())


def _tool_slots(conversation: Conversation, rendered: str) -> Iterator[Slot]:
    """One slot for each tool schema that is found as the template's ``tojson`` writes it."""
    cursor = 0
    for tool in conversation.tools or ():
        for value in (tool, tool["function"]):
            written = [json.dumps(value, ensure_ascii=False, indent=indent) for indent in (None, 4)]
            found = [(rendered.find(text, cursor), text) for text in written]
            start, text = max(found, key=lambda pair: pair[0])
            if start >= 0:
                cursor = start + len(text)
                yield Slot(start, cursor, SegmentKind.TOOL, tool["function"]["name"][:64])
                break


def _system_end(
    conversation: Conversation, places: Places, marked: Sequence[Slot], tools: Sequence[Slot]
) -> int:
    """End of the leading system turns' last unmarked text before any marked one; 0 if there is none.

    If nothing else stands there, the next turn's header belongs to it: all such prompts share it.
    """
    first_marked = min((slot.start for slot in marked), default=None)
    end = 0
    for site, place in zip(conversation.sites, places, strict=True):
        leading = site.message < conversation.leading_system and site.mark is None
        if leading and place and (first_marked is None or place.end <= first_marked):
            end = max(end, place.end)
    if not end:
        return 0
    header = [
        place.start
        for site, place in zip(conversation.sites, places, strict=True)
        if site.message == conversation.leading_system and place and place.start >= end
    ]
    between = [s for s in (*marked, *tools) if header and end <= s.start < min(header)]
    return end if between or not header else min(header)


def _text_slots(conversation: Conversation, places: Places) -> Iterator[Slot]:
    """Unmarked texts after the leading system turns, except the last; answers with their calls."""
    located = [(n, place) for n, place in enumerate(places) if place is not None]
    last_message = len(conversation.turns) - 1
    final = located[-1][0] if located else -1
    for number, place in located:
        site = conversation.sites[number]
        if site.mark is None and site.message >= conversation.leading_system and number != final:
            kind = SegmentKind.TURN if site.message < last_message else SegmentKind.TEXT
            yield Slot(place.start, place.end, kind, site=number)
    yield from _call_slots(conversation, located)


def _call_slots(conversation: Conversation, located: Sequence[tuple[int, Place]]) -> Iterator[Slot]:
    """Answers with tool calls, which no text marks: all that is written between the text before the
    calls and the next one."""
    for (left, before), (right, after) in pairwise(located):
        turns = conversation.turns
        first, last = conversation.sites[left].message, conversation.sites[right].message
        if any(turn.fields.get("tool_calls") for turn in turns[first:last]):
            yield Slot(before.end, after.start, SegmentKind.TURN)
