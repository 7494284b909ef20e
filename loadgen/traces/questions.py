"""MultiHop-RAG's questions with gold answers, evidence passages and distractors: real texts.

For what needs a model's answer, and as the trace ``multihop-questions``. Judges no answer.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.data import data_path, from_hub, read_json, version
from loadgen.traces.retrieval import FILES, read_lists
from loadgen.traces.tokens import count_tokens
from prism_ray.model import NO_GAP, Atom, Segment, SegmentKind, Skeleton

DIRECTORY = "multihop-rag"
HUB = ("yixuantt/MultiHopRAG", "MultiHopRAG", "train")
SYSTEM = (
    "Answer the question from the passages below. Answer with a name, a date, yes or no, and nothing "
    "else. If the passages do not say it, answer: Insufficient information."
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text in front of a question; ``evidence`` if the gold answer rests on it."""

    text: str
    evidence: bool

    @property
    def id(self) -> bytes:
        return digest("text", self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its gold answer, and its passages in the order in which they are shown.

    ``kind`` is the data set's: inference, comparison, temporal or null query; a null query has no
    evidence, and its answer says so.
    """

    id: str
    text: str
    kind: str
    answer: str
    passages: tuple[Passage, ...]

    @property
    def evidence(self) -> tuple[Passage, ...]:
        return tuple(p for p in self.passages if p.evidence)

    @property
    def distractors(self) -> tuple[Passage, ...]:
        return tuple(p for p in self.passages if not p.evidence)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as the data set has it: ``facts`` are the sentences that its answer rests on."""

    id: str
    text: str
    kind: str
    answer: str
    facts: tuple[str, ...]


def load_questions(
    seed: int = 0,
    passages: int = 5,
    *,
    kinds: Sequence[str] | None = None,
    path: str | None = None,
    hub: bool = False,
) -> list[Question]:
    """All questions (of ``kinds``) in an order drawn by ``seed``, each with ``passages`` passages.

    Evidence is the retrieved passage that contains the sentence where there is one, else the sentence
    itself. Distractors are retrieved passages that contain none of the question's evidence, drawn as
    often as real retrieval lists have them; all stand in a drawn order. A question with more evidence
    than ``passages`` keeps all of it. Raises DataMissing, ValueError for unknown kinds.
    """
    asked = read_asked(path, hub)
    known = {a.kind for a in asked}
    if kinds is not None and set(kinds) - known:
        raise ValueError(f"no questions of kind {kinds}; there are {', '.join(sorted(known))}")
    corpus = _Corpus.load()
    rng = random.Random(f"questions-{seed}")
    questions: list[Question] = []
    for one in rng.sample(asked, len(asked)):
        # Passages are drawn for every question, so that a choice of kinds changes no other's.
        evidence = list(dict.fromkeys(corpus.holder(fact) or fact for fact in one.facts))
        avoid = {*evidence, *(text for fact in one.facts for text in corpus.holders(fact))}
        shown = [Passage(text, True) for text in evidence]
        while len(shown) < passages:
            text = corpus.draw(rng)
            if text not in avoid:
                avoid.add(text)
                shown.append(Passage(text, False))
        rng.shuffle(shown)
        if kinds is None or one.kind in kinds:
            questions.append(Question(one.id, one.text, one.kind, one.answer, tuple(shown)))
    return questions


def read_asked(path: str | None = None, hub: bool = False) -> list[Asked]:
    """MultiHop-RAG's questions in any of its published forms.

    ``path`` (by default in the data directory) is a directory with ``queries.json`` and
    ``ground_truth.json``, or the original ``MultiHopRAG.json``; ``hub`` fetches the latter. Raises
    DataMissing, or ValueError for another form.
    """
    if hub:
        return _original(from_hub(*HUB), HUB[0])
    found = data_path(DIRECTORY, path)
    if found.is_file():
        return _original(read_json(found), str(found))
    return _sampled(found)


def _original(rows: Any, where: str) -> list[Asked]:
    try:
        return [
            Asked(str(n), r["query"], r["question_type"], r["answer"], _facts(r["evidence_list"]))
            for n, r in enumerate(rows)
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where}: no MultiHop-RAG questions: {error}") from error


def _sampled(directory: Path) -> list[Asked]:
    queries = read_json(directory / "queries.json")
    truth = read_json(directory / "ground_truth.json")
    try:
        return [
            Asked(
                q["id"],
                q["question"],
                q["question_type"],
                truth[q["id"]]["answer"],
                _facts(truth[q["id"]]["evidence_list"]),
            )
            for q in queries["queries"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory}: no MultiHop-RAG questions: {error}") from error


def _facts(evidence: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(e["fact"]).strip() for e in evidence))


class _Corpus:
    """The retrieved passages, how often each was, and which hold a sentence."""

    def __init__(self, lists: Sequence[tuple[str, ...]]) -> None:
        uses = Counter(text for row in lists for text in row)
        self._texts = list(uses)
        self._weights = list(uses.values())
        self._cum_weights = list(accumulate(self._weights))
        self._words = [_words(text) for text in self._texts]
        self._holders: dict[str, list[str]] = {}

    @classmethod
    def load(cls) -> _Corpus:
        found = data_path(FILES["multihop-rag"])
        return _corpus(found, version(found))

    def holder(self, fact: str) -> str | None:
        """The most retrieved passage with ``fact`` in it."""
        return next(iter(self.holders(fact)), None)

    def holders(self, fact: str) -> list[str]:
        """All passages with ``fact`` in them, most retrieved first."""
        if fact not in self._holders:
            words = _words(fact)
            found = [i for i, text in enumerate(self._words) if words in text]
            found.sort(key=lambda i: -self._weights[i])
            self._holders[fact] = [self._texts[i] for i in found]
        return self._holders[fact]

    def draw(self, rng: random.Random) -> str:
        return rng.choices(self._texts, cum_weights=self._cum_weights)[0]


@lru_cache(maxsize=2)
def _corpus(_path: Path, _version: tuple[int, int]) -> _Corpus:
    return _Corpus(read_lists("multihop-rag"))


def _words(text: str) -> str:
    """Letters and digits only: retrieval cut sentences and lost their punctuation."""
    return " " + " ".join(re.findall(r"[^\W_]+", text.lower())) + " "


@TRACES.register("multihop-questions")
def multihop_questions(
    *,
    seed: int,
    count: int,
    passages: int = 5,
    output_tokens: int = 16,
    path: str | None = None,
    hub: bool = False,
) -> Trace:
    """MultiHop-RAG's questions with evidence and distractors; ``text_of`` has every text."""
    questions = load_questions(seed, passages, path=path, hub=hub)[:count]
    texts = list(
        dict.fromkeys(
            [SYSTEM, *(q.text for q in questions), *(p.text for q in questions for p in q.passages)]
        )
    )
    counts = dict(zip(texts, count_tokens(texts), strict=True))
    system = Segment(digest("text", SYSTEM), counts[SYSTEM], SegmentKind.SYSTEM)
    requests = tuple(
        TraceRequest(
            f"r{number}",
            Skeleton(
                system,
                tuple(
                    Segment(p.id, counts[p.text], SegmentKind.DOCUMENT, run=0)
                    for p in question.passages
                ),
                (NO_GAP,) * len(question.passages),
                counts[question.text],
            ),
            output_tokens,
            private=(Atom(digest("text", question.text), counts[question.text]),),
        )
        for number, question in enumerate(questions)
    )
    notes = [
        "questions, gold answers and evidence are MultiHop-RAG's; evidence is shown as the retrieved "
        "passage that contains it where there is one; distractors are real retrieved passages, drawn "
        "by seed as often as real lists have them; a template around them is not counted"
    ]
    if len(questions) < count:
        notes.append(f"there are {len(questions)} questions, not {count}")
    options = {"passages": passages, "output_tokens": output_tokens, "path": path, "hub": hub}
    by_id = {digest("text", text): text for text in texts}
    return Trace("multihop-questions", seed, options, requests, tuple(notes), by_id.get)
