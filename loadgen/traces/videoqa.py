"""Preble's video workload, ``videoqa``: a tokenized video, then a multiple-choice question on it."""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.data import data_path, from_hub
from loadgen.traces.lengths import draw_tokens
from loadgen.traces.tokens import count_tokens
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton

FILE = "nextqa/test.csv"
HUB = ("lmms-lab/NExTQA", "MC", "test")
TOKENS_PER_FRAME = 257
"""Of a video tokenizer (256 codes and a separator, as large world models have it)."""
FRAMES_PER_S = 30
"""The data set gives frame counts only; one frame a second is taken, at the usual rate."""
OUTPUT_TOKENS = 4
WRAPPER_TOKENS = 24
"""Generated: what stands around a question and its choices."""
VIDEOS, QUESTIONS, MEAN_FRAMES = 1000, 8564, 1151
"""Of NExT-QA's test split; for generated videos."""


class Question(NamedTuple):
    """One question: its video, how many frames that has, and the tokens of the question's text."""

    video: str
    frames: int
    tokens: int


def read_questions(path: str | None = None, hub: bool = False) -> list[Question]:
    """The rows of a NExT-QA multiple-choice file. Raises DataMissing, or ValueError for another form.

    ``hub`` fetches the test split.
    """
    rows: Sequence[Mapping[str, Any]]
    if hub:
        rows, found = from_hub(*HUB), HUB[0]
    else:
        file_path = data_path(FILE, path)
        found = str(file_path)
        with file_path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    try:
        texts = ["\n".join([r["question"], *(r[f"a{i}"] for i in range(5))]) for r in rows]
        frames = [int(row["frame_count"]) for row in rows]
        videos = [str(row["video"]) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{found}: no NExT-QA multiple-choice file: {error}") from error
    return [Question(*row) for row in zip(videos, frames, count_tokens(texts), strict=True)]


def generated_questions(rng: random.Random) -> list[Question]:
    """As many videos and questions as NExT-QA's test split has."""
    frames = [draw_tokens(rng, MEAN_FRAMES, 0.6) for _ in range(VIDEOS)]
    return [
        Question(f"video {n % VIDEOS}", frames[n % VIDEOS], draw_tokens(rng, 28))
        for n in range(QUESTIONS)
    ]


@TRACES.register("videoqa")
def videoqa(
    *, seed: int, count: int, real: bool = True, path: str | None = None, hub: bool = False
) -> Trace:
    """Video question answering (Preble, §A.4): 9,865 prompt tokens, 4 generated, 88% shared.

    A sample of the questions without repetition; how many have a video to themselves, and with it
    the sharing, follows from ``count`` (88% at 2,048). ``real=False`` needs no data.
    """
    rng = random.Random(f"videoqa-{seed}")
    questions = read_questions(path, hub) if real else generated_questions(rng)
    chosen = rng.sample(questions, min(count, len(questions)))
    requests = tuple(
        TraceRequest(
            f"r{number}",
            Skeleton(None, (_video(question),), (NO_GAP,), WRAPPER_TOKENS + question.tokens),
            OUTPUT_TOKENS,
        )
        for number, question in enumerate(chosen)
    )
    source = (
        f"videos, frame counts and questions are NExT-QA's ({Path(path or FILE).name})"
        if real
        else "videos and questions are generated with the numbers and mean length of NExT-QA's"
    )
    notes = [
        f"{source}; a video counts as {TOKENS_PER_FRAME} tokens for each of its seconds at "
        f"{FRAMES_PER_S} frames/s: that tokenization is ours"
    ]
    if len(chosen) < count:
        notes.append(f"there are {len(chosen)} questions, not {count}")
    return Trace("videoqa", seed, {"real": real, "path": path, "hub": hub}, requests, tuple(notes))


def _video(question: Question) -> Segment:
    tokens = max(1, question.frames // FRAMES_PER_S) * TOKENS_PER_FRAME
    return Segment(digest("video", question.video), tokens, SegmentKind.DOCUMENT)
