"""τ²-bench's banking tasks as conversations over shared documents. The documents are real.

A task names the documents that it needs; no runs are published, so the turns around them are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from loadgen.traces.base import digest
from loadgen.traces.conversation import Conversation, Turn
from loadgen.traces.data import data_path, read_json
from loadgen.traces.tokens import count_tokens
from prism_ray.model import NO_GAP, Atom, Segment, SegmentKind

DIRECTORY = "tau2-bench/banking_knowledge"
MESSAGE_TOKENS = (20, 80)
"""Range of the generated user messages, uniform."""
CALL_TOKENS = (24, 48)
"""Range of the generated calls for a document, uniform; the last answer is drawn like a message."""
HEADER = (b"turn header", 4)


def banking_sessions(
    rng: random.Random, reorderable: bool = False, path: str | None = None
) -> Iterator[tuple[str, list[Turn]]]:
    """Endless (name, turns), the tasks in shuffled passes.

    Each turn's answer asks for the next document, in a drawn order; the last one answers the user.
    ``reorderable``: one turn, with all documents in a run before the question. Raises DataMissing.
    """
    directory = data_path(DIRECTORY, path)
    tasks = read_tasks(directory)
    documents = read_documents(directory)
    system = _system(directory)
    number = 0
    while True:
        for task, needed in rng.sample(tasks, len(tasks)):
            order = [documents[name] for name in rng.sample(needed, len(needed))]
            name = f"{task} session {number}"
            own = digest("banking", number)
            turns = _at_once if reorderable else _one_by_one
            yield name, turns(rng, system, order, own)
            number += 1


def read_tasks(directory: Path) -> list[tuple[str, list[str]]]:
    """(task id, ids of the documents that it needs), tasks without any left out."""
    tasks = read_json(directory / "tasks.json")
    rows = [(str(t["id"]), sorted(set(t.get("required_documents") or ()))) for t in tasks]
    return [(task, needed) for task, needed in rows if needed]


def read_documents(directory: Path) -> dict[str, Segment]:
    """A segment for each document, by its id: title and content as a tool would return them."""
    values = [read_json(path) for path in sorted((directory / "documents").glob("*.json"))]
    texts = [f"{value['title']}\n{value['content']}" for value in values]
    return {
        str(value["id"]): Segment(
            digest("text", text), tokens, SegmentKind.DOCUMENT, label=str(value["id"])[:64]
        )
        for value, text, tokens in zip(values, texts, count_tokens(texts), strict=True)
    }


def _system(directory: Path) -> Segment:
    components = directory / "prompts" / "components"
    names = ("policy_header.md", "additional_instructions.md")
    text = "\n\n".join((components / name).read_text(encoding="utf-8") for name in names)
    return Segment(digest("text", text), count_tokens([text])[0], SegmentKind.SYSTEM)


def _one_by_one(
    rng: random.Random, system: Segment, documents: list[Segment], own: bytes
) -> list[Turn]:
    conversation = Conversation(system)
    conversation.add(HEADER, digest(own, "user"), rng.randint(*MESSAGE_TOKENS), SegmentKind.TURN)
    turns: list[Turn] = []
    for document in documents:
        call = digest(own, "call", document.id)
        turns.append(conversation.answer(HEADER, call, rng.randint(*CALL_TOKENS)))
        conversation.add(HEADER, document.id, document.tokens, SegmentKind.DOCUMENT)
    turns.append(conversation.answer(HEADER, digest(own, "answer"), rng.randint(*MESSAGE_TOKENS)))
    return turns


def _at_once(
    rng: random.Random, system: Segment, documents: list[Segment], own: bytes
) -> list[Turn]:
    pieces = tuple(
        (NO_GAP, Segment(d.id, d.tokens, d.kind, run=0, label=d.label)) for d in documents
    )
    question = Atom(digest(own, "question"), rng.randint(*MESSAGE_TOKENS))
    answer = digest(own, "answer")
    return [Turn(system, pieces, frozenset(), question, answer, rng.randint(*MESSAGE_TOKENS))]
