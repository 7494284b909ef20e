"""Preble's program-generation workload, ``programming``: demonstrations, a problem, candidates."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.data import data_path, from_hub, read_json_lines
from loadgen.traces.lengths import draw_tokens
from loadgen.traces.tokens import count_tokens
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton

HUMANEVAL, MBPP = "codegen/HumanEval.jsonl.gz", "codegen/mbpp-py.jsonl"
HUB = (
    ("openai/openai_humaneval", None, "test"),
    ("google-research-datasets/mbpp", "full", "test"),
)
PROMPT_TOKENS, OUTPUT_TOKENS, SHARED = 3871, 190, 0.97
"""Means of the workload (Preble, Table 1)."""
PRIVATE_TOKENS = PROMPT_TOKENS * (1 - SHARED)
PROBLEMS, PROBLEM_TOKENS = 561, 163
"""Of both sets together; for generated problems."""


class Piece(NamedTuple):
    """A text by its id and length."""

    id: bytes
    tokens: int


def read_problems(path: str | None = None, hub: bool = False) -> tuple[list[Piece], list[Piece]]:
    """(problems with their tests, solved examples) of HumanEval and MBPP.

    ``path`` is a directory with the files of ``HUMANEVAL`` and ``MBPP``; ``hub`` fetches both. Raises
    DataMissing, or ValueError for rows of another form.
    """
    if hub:
        humaneval, mbpp = (from_hub(*source) for source in HUB)
    else:
        directory = None if path is None else Path(path)
        first, second = (
            data_path(name, None if directory is None else directory / Path(name).name)
            for name in (HUMANEVAL, MBPP)
        )
        with gzip.open(first, "rt", encoding="utf-8") as file:
            humaneval = [json.loads(line) for line in file if line.strip()]
        mbpp = list(read_json_lines(second))
    try:
        problems = [f"{row['prompt']}\n{row['test']}" for row in humaneval]
        problems += [_mbpp_text(row) for row in mbpp]
        solved = [f"{row['prompt']}{row['canonical_solution']}\n" for row in humaneval]
    except KeyError as error:
        raise ValueError(f"a row of HumanEval or MBPP without {error}") from error
    counts = count_tokens([*problems, *solved])
    pieces = [
        Piece(digest("text", t), n) for t, n in zip([*problems, *solved], counts, strict=True)
    ]
    return pieces[: len(problems)], pieces[len(problems) :]


def _mbpp_text(row: Mapping[str, Any]) -> str:
    """MBPP in MultiPL-E's form (prompt, test) or in its own (text, test_list)."""
    if "text" in row:
        return "\n".join([row["text"], *row["test_list"]])
    return f"{row['prompt']}\n{row['test']}"


def generated_problems(rng: random.Random) -> tuple[list[Piece], list[Piece]]:
    """As many problems as there are real ones, and as many examples as a prompt has room for."""
    problems = [
        Piece(digest("problem", n), draw_tokens(rng, PROBLEM_TOKENS)) for n in range(PROBLEMS)
    ]
    return problems, [Piece(digest("example", n), 188) for n in range(164)]


@TRACES.register("programming")
def programming(
    *,
    seed: int,
    count: int,
    candidates: int = 8,
    concurrent: int = 16,
    real: bool = True,
    path: str | None = None,
    hub: bool = False,
) -> Trace:
    """Program generation (Preble, §A.3): 3,871 prompt tokens, 190 generated, 97% shared.

    Each problem is asked ``candidates`` times, each with a rest of its own; ``concurrent`` problems
    are under way at a time. ``real=False`` needs no data.
    """
    if candidates < 1 or concurrent < 1:
        raise ValueError("there is at least one candidate, and one problem under way")
    rng = random.Random(f"programming-{seed}")
    problems, examples = read_problems(path, hub) if real else generated_problems(rng)
    mean_tokens = sum(p.tokens for p in problems) / len(problems)
    system = _demonstrations(rng, examples, round(PROMPT_TOKENS * SHARED - mean_tokens))
    under_way: list[tuple[Piece, int]] = []
    waiting: list[Piece] = []
    requests: list[TraceRequest] = []
    for number in range(count):
        while len(under_way) < concurrent:
            waiting = waiting or rng.sample(problems, len(problems))
            under_way.append((waiting.pop(), candidates))
        chosen = rng.randrange(len(under_way))
        problem, left = under_way.pop(chosen)
        if left > 1:
            under_way.append((problem, left - 1))
        segment = Segment(problem.id, problem.tokens, SegmentKind.TEXT)
        skeleton = Skeleton(system, (segment,), (NO_GAP,), draw_tokens(rng, PRIVATE_TOKENS))
        output = draw_tokens(rng, OUTPUT_TOKENS, 1.0)
        requests.append(TraceRequest(f"r{number}", skeleton, output))
    source = (
        "problems, tests and the solved examples in front are real (HumanEval, MBPP)"
        if real
        else "problems and examples are generated"
    )
    notes = (
        f"{source}, APPS itself is not in reach; there are as many examples as Preble's mean prompt "
        f"has room for; each candidate's own rest of {PRIVATE_TOKENS:.0f} tokens on average and all "
        "outputs are generated",
    )
    options = {
        "candidates": candidates,
        "concurrent": concurrent,
        "real": real,
        "path": path,
        "hub": hub,
    }
    return Trace("programming", seed, options, tuple(requests), notes)


def _demonstrations(rng: random.Random, examples: list[Piece], room_tokens: int) -> Segment:
    """One block of solved examples, the last one cut where the room ends."""
    names: list[bytes] = []
    tokens = 0
    for example in rng.sample(examples, len(examples)):
        if tokens >= room_tokens:
            break
        names.append(example.id)
        tokens += example.tokens
    return Segment(
        digest("demonstrations", room_tokens, *names), min(tokens, room_tokens), SegmentKind.SYSTEM
    )
