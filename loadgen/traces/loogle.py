"""Preble's long-document workload, ``loogle``: a long document, then a question about it."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.data import data_path, from_hub, read_json_lines
from loadgen.traces.lengths import draw_tokens
from loadgen.traces.tokens import count_tokens
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton

HUB = ("bigai-nlco/LooGLE", ("shortdep_qa", "shortdep_cloze", "longdep_qa", "summarization"))
PROMPT_TOKENS, OUTPUT_TOKENS = 23474, 16
"""Means of the workload (Preble, Table 1)."""
DOCUMENTS, QUESTIONS = 776, 6400
"""Of the data set (Preble, §A.5)."""
SINGLE_DOCUMENTS = 516
"""Documents with one question, of the generated ones: what leads to Preble's 91% shared tokens."""
QUESTION_TOKENS = 40


class Question(NamedTuple):
    """A question and the document that it is about."""

    document: bytes
    document_tokens: int
    tokens: int


def generated_questions(rng: random.Random) -> list[Question]:
    """776 documents and 6,400 questions; what one document more has, another has less."""
    lengths = [draw_tokens(rng, PROMPT_TOKENS - QUESTION_TOKENS, 0.25) for _ in range(DOCUMENTS)]
    of = [
        *range(SINGLE_DOCUMENTS),
        *(rng.randrange(SINGLE_DOCUMENTS, DOCUMENTS) for _ in range(QUESTIONS - SINGLE_DOCUMENTS)),
    ]
    return [
        Question(digest("loogle", n), lengths[n], draw_tokens(rng, QUESTION_TOKENS)) for n in of
    ]


def read_questions(rows: Iterable[Mapping[str, Any]]) -> list[Question]:
    """Questions of LooGLE in either published form of a row.

    ``{"context", "question"}``, or ``{"input", "qa_pairs": [{"Q": …}, …]}``, where the pairs may be
    written as a string, or are "none" for a document that is to be summarized. ValueError otherwise.
    """
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(rows, 1):
        document = row.get("context") or row.get("input")
        if not isinstance(document, str):
            raise ValueError(f'row {number}: expected a "context" or "input"')
        asked = row.get("qa_pairs")
        if isinstance(asked, str) and asked.lstrip().startswith("["):
            asked = ast.literal_eval(asked)
        if isinstance(asked, list):
            pairs += [(document, str(pair["Q"])) for pair in asked]
        else:
            pairs.append((document, str(row.get("question") or "Summarize the text above.")))
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    counts = dict(zip(texts, count_tokens(texts), strict=True))
    return [Question(digest("text", d), counts[d], counts[q]) for d, q in pairs]


@TRACES.register("loogle")
def loogle(*, seed: int, count: int, path: str | None = None, hub: bool = False) -> Trace:
    """Long documents (Preble, §A.5): 23,474 prompt tokens, 16 generated, 91% shared.

    Generated, unless ``path`` names a LooGLE file (JSON Lines) or ``hub`` fetches it. A sample of the
    questions without repetition.
    """
    rng = random.Random(f"loogle-{seed}")
    if hub:
        name, configs = HUB
        questions = read_questions(r for c in configs for r in from_hub(name, c, "test"))
    elif path is not None:
        questions = read_questions(read_json_lines(data_path("loogle", path)))
    else:
        questions = generated_questions(rng)
    chosen = rng.sample(questions, min(count, len(questions)))
    requests = tuple(
        TraceRequest(
            f"r{number}",
            Skeleton(
                None,
                (Segment(question.document, question.document_tokens, SegmentKind.DOCUMENT),),
                (NO_GAP,),
                question.tokens,
            ),
            draw_tokens(rng, OUTPUT_TOKENS),
        )
        for number, question in enumerate(chosen)
    )
    notes = [
        "documents and questions are LooGLE's; outputs are generated"
        if hub or path is not None
        else f"generated: {DOCUMENTS} documents and {QUESTIONS} questions at Preble's mean lengths, "
        f"{SINGLE_DOCUMENTS} documents with one question"
    ]
    if len(chosen) < count:
        notes.append(f"there are {len(chosen)} questions, not {count}")
    return Trace("loogle", seed, {"path": path, "hub": hub}, requests, tuple(notes))
