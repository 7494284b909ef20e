"""Preble's embodied-agent workload, ``embodied``: demonstrations, then a task step by step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from loadgen.traces.agents import interleave
from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.conversation import Conversation, Turn
from loadgen.traces.data import data_path, read_json
from loadgen.traces.lengths import draw_tokens
from loadgen.traces.tokens import count_tokens
from prism_ray.model import Segment, SegmentKind

FILE = "alfworld/alfworld_3prompts.json"
TASKS = ("put", "clean", "heat", "cool", "examine", "puttwo")
INTRODUCTION = "Interact with a household to solve a task. Here are two examples.\n"
ACTION_HEADER = (b"action header", 2)
OBSERVATION_HEADER = (b"observation header", 1)
STEPS = (40, 50)
"""Range of a task's steps, uniform (ALFWorld ends one after 50): the mean prompt is then Preble's."""


class Household(NamedTuple):
    """What the demonstrations of one kind of task come to, in tokens.

    ``steps`` are (action, what was seen after it) as they stand in the demonstrations.
    """

    task: str
    demonstrations: tuple[bytes, int]
    first_sights: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]


def read_households(path: str | None = None) -> list[Household]:
    """ReAct's ALFWorld demonstrations: ``{"react_<task>_<n>": text}``, two of them a prompt.

    Raises DataMissing without the file, ValueError where a kind of task is missing.
    """
    found = data_path(FILE, path)
    value = read_json(found)
    try:
        demonstrations = [[value[f"react_{task}_{n}"] for n in (1, 0)] for task in TASKS]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{found}: no demonstration {error}") from error
    fronts = [INTRODUCTION + "".join(texts) for texts in demonstrations]
    parsed = [[_parse(text) for text in texts] for texts in demonstrations]
    texts = [
        *fronts,
        *(sight for pair in parsed for sight, _ in pair),
        *(text for pair in parsed for _, steps in pair for step in steps for text in step),
    ]
    counts = dict(zip(texts, count_tokens(texts), strict=True))
    return [
        Household(
            task,
            (digest("text", front), counts[front]),
            tuple(counts[sight] for sight, _ in pair),
            tuple((counts[a], counts[o]) for _, steps in pair for a, o in steps),
        )
        for task, front, pair in zip(TASKS, fronts, parsed, strict=True)
    ]


def generated_households(rng: random.Random) -> list[Household]:
    """The kinds of tasks with generated lengths, of about the real ones' means."""
    return [
        Household(
            task,
            (digest("demonstrations", task), draw_tokens(rng, 1390, 0.1)),
            tuple(draw_tokens(rng, 105, 0.2) for _ in range(2)),
            tuple((draw_tokens(rng, 17, 0.8), draw_tokens(rng, 18, 0.8)) for _ in range(80)),
        )
        for task in TASKS
    ]


@TRACES.register("embodied")
def embodied(
    *,
    seed: int,
    count: int,
    concurrent: int = 16,
    real: bool = True,
    path: str | None = None,
) -> Trace:
    """Embodied agents (Preble, §A.2): 2,285 prompt tokens, 16 generated, 97% shared.

    Each step of a task is a request that begins with the whole of the last one; ``concurrent`` tasks
    are under way at a time. ``real=False`` needs no data.
    """
    if concurrent < 1:
        raise ValueError(f"{concurrent} tasks cannot be under way")
    rng = random.Random(f"embodied-{seed}")
    households = read_households(path) if real else generated_households(rng)
    turns = interleave(rng, _tasks(rng, households), concurrent, max_prompt_tokens=40_960)
    requests: list[TraceRequest] = []
    while len(requests) < count:
        session, turn = next(turns)
        requests.append(turn.request(f"r{len(requests)}", session, None))
    source = (
        "demonstrations are ReAct's for ALFWorld; actions and observations have the lengths of those "
        "in the demonstrations, in a drawn order"
        if real
        else "demonstrations, actions and observations are generated"
    )
    notes = (
        f"{source}; games of ALFWorld are not in reach: kinds of tasks and their number of steps are "
        "drawn so that the mean prompt is Preble's",
    )
    options = {"concurrent": concurrent, "real": real, "path": path}
    return Trace("embodied", seed, options, tuple(requests), notes)


def _tasks(rng: random.Random, households: list[Household]) -> Iterator[tuple[str, list[Turn]]]:
    number = 0
    while True:
        household = rng.choice(households)
        yield f"{household.task} {number}", _steps(rng, household, digest("household", number))
        number += 1


def _steps(rng: random.Random, household: Household, own: bytes) -> list[Turn]:
    conversation = Conversation(Segment(*household.demonstrations, SegmentKind.SYSTEM))
    sight = rng.choice(household.first_sights)
    conversation.add(OBSERVATION_HEADER, digest(own, "sight"), sight, SegmentKind.TOOL)
    turns: list[Turn] = []
    for step in range(rng.randint(*STEPS)):
        action, seen = rng.choice(household.steps)
        turns.append(conversation.answer(ACTION_HEADER, digest(own, "action", step), action))
        conversation.add(OBSERVATION_HEADER, digest(own, "seen", step), seen, SegmentKind.TOOL)
    return turns


def _parse(text: str) -> tuple[str, list[tuple[str, str]]]:
    """(what is seen first, with the task; [(action, what is seen after it), …])."""
    front, *steps = text.strip().split("\n> ")
    pairs = [step.partition("\n") for step in steps]
    return front, [(action + "\n", seen + "\n") for action, _, seen in pairs]
