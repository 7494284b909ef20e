"""Traces of real retrieval: which five passages a retriever chose, in the order in which it did.

The files are the results of Psi-RAG's retrieval runs in their original form. The questions are not
in them: private rests are generated.
"""

from __future__ import annotations

import random
from pathlib import Path

from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.data import data_path, read_json
from loadgen.traces.tokens import count_tokens
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton

FILES = {
    "multihop-rag": "psi-rag-retrieval/multihoprag_keyword.json",
    "2wiki": "psi-rag-retrieval/2wikimultihopqa_keyword.json",
    "hotpotqa": "psi-rag-retrieval/hotpotqa_keyword.json",
}
QUESTION_TOKENS = (16, 64)
"""Range of the generated private rest, uniform: a question and what is written around it."""


def read_lists(name: str, path: str | None = None) -> list[tuple[str, ...]]:
    """The retrieved passages of each request: ``{"retrieved_docs": [[text, …], …]}``.

    Raises DataMissing without the file, ValueError if it has another form.
    """
    found = data_path(FILES[name], path)
    value = read_json(found)
    lists = value.get("retrieved_docs") if isinstance(value, dict) else None
    if not isinstance(lists, list) or not all(_is_list_of_texts(row) for row in lists):
        raise ValueError(f'{found}: expected "retrieved_docs", a list of lists of texts')
    return [tuple(row) for row in lists]


def passage_segments(lists: list[tuple[str, ...]]) -> dict[str, Segment]:
    """A reorderable segment for each distinct passage, with its real length."""
    texts = list(dict.fromkeys(text for row in lists for text in row))
    return {
        text: Segment(digest("text", text), tokens, SegmentKind.DOCUMENT, run=0)
        for text, tokens in zip(texts, count_tokens(texts), strict=True)
    }


def _is_list_of_texts(row: object) -> bool:
    return isinstance(row, list) and all(isinstance(text, str) for text in row)


def _make(
    name: str,
    seed: int,
    count: int,
    system_tokens: int,
    output_tokens: int,
    repeat: bool,
    path: str | None,
) -> Trace:
    lists = read_lists(name, path)
    segments = passage_segments(lists)
    rng = random.Random(f"{name}-{seed}")
    system = Segment(digest(name, "system", system_tokens), system_tokens, SegmentKind.SYSTEM)
    chosen: list[tuple[str, ...]] = []
    while len(chosen) < count and (repeat or not chosen):
        chosen += rng.sample(lists, len(lists))
    requests = tuple(
        TraceRequest(
            f"r{number}",
            Skeleton(
                system,
                tuple(segments[text] for text in row),
                (NO_GAP,) * len(row),
                rng.randint(*QUESTION_TOKENS),
            ),
            output_tokens,
        )
        for number, row in enumerate(chosen[:count])
    )
    texts = {segment.id: text for text, segment in segments.items()}
    source = Path(path).name if path else Path(FILES[name]).name
    notes = [
        f"passages, their lengths (Qwen3 tokens) and the lists are real ({source}, in the order of "
        "a shuffle by seed); the questions are not in the file: private rests of "
        f"{QUESTION_TOKENS[0]}-{QUESTION_TOKENS[1]} tokens are generated"
    ]
    if len(requests) < count:
        notes.append(f"the file has {len(lists)} lists: {len(requests)} requests, not {count}")
    elif count > len(lists):
        notes.append(f"{len(lists)} lists are asked again, in other orders, up to {count} requests")
    options = {
        "system_tokens": system_tokens,
        "output_tokens": output_tokens,
        "repeat": repeat,
        "path": path,
    }
    return Trace(name, seed, options, requests, tuple(notes), texts.get)


@TRACES.register("multihop-rag")
def multihop_rag(
    *,
    seed: int,
    count: int,
    system_tokens: int = 214,
    output_tokens: int = 16,
    repeat: bool = False,
    path: str | None = None,
) -> Trace:
    """MultiHop-RAG: news, much sharing. ``repeat`` asks the lists again when they are used up."""
    return _make("multihop-rag", seed, count, system_tokens, output_tokens, repeat, path)


@TRACES.register("2wiki")
def two_wiki(
    *,
    seed: int,
    count: int,
    system_tokens: int = 214,
    output_tokens: int = 16,
    repeat: bool = False,
    path: str | None = None,
) -> Trace:
    """2WikiMultiHopQA: biographies, some sharing, hardly any of it as a prefix."""
    return _make("2wiki", seed, count, system_tokens, output_tokens, repeat, path)


@TRACES.register("hotpotqa")
def hotpotqa(
    *,
    seed: int,
    count: int,
    system_tokens: int = 214,
    output_tokens: int = 16,
    repeat: bool = False,
    path: str | None = None,
) -> Trace:
    """HotpotQA: the control, hardly any sharing beyond the system prefix."""
    return _make("hotpotqa", seed, count, system_tokens, output_tokens, repeat, path)
