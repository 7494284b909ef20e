"""Preble's tool-use workload, ``toolbench``: instructions, the tools of a task, a query.

Tool schemas and which of them come together are those of the Berkeley Function Calling Leaderboard;
ToolBench itself is not in reach. Lengths and sharing are Preble's.
"""

from __future__ import annotations

import json
import random

from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.data import data_path, read_json_lines
from loadgen.traces.lengths import draw_tokens
from loadgen.traces.tokens import count_tokens
from loadgen.traces.zipf_hotspot import zipf_weights
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton

FILE = "bfcl/live_multiple_tools.jsonl"
PROMPT_TOKENS, OUTPUT_TOKENS, SHARED = 1835, 43, 0.85
"""Means of the workload (Preble, Table 1)."""
PRIVATE_TOKENS = PROMPT_TOKENS * (1 - SHARED)
LIST_TOKENS, LIST_TOOLS, LISTS = 893, 4, 351
"""Mean tokens and tools of BFCL's lists, and how many distinct ones there are; for generated ones."""
INSTRUCTION_TOKENS = round(PROMPT_TOKENS * SHARED) - LIST_TOKENS
"""The common instructions: what is left of the shared part. ToolBench's own are of that length."""

ToolList = tuple[tuple[bytes, int], ...]
"""(id, tokens) of each tool of a task, in its order."""


def read_tool_lists(path: str | None = None) -> list[ToolList]:
    """The tools of each request of the file: ``{"functions": [schema, …]}`` a line.

    Raises DataMissing without the file, ValueError for a line of another form.
    """
    found = data_path(FILE, path)
    rows: list[list[str]] = []
    for number, row in enumerate(read_json_lines(found), 1):
        functions = row.get("functions", row.get("function"))
        if not isinstance(functions, list):
            raise ValueError(f'{found}:{number}: expected "functions", a list of schemas')
        rows.append([json.dumps(schema) for schema in functions])
    texts = list(dict.fromkeys(text for row in rows for text in row))
    counts = dict(zip(texts, count_tokens(texts), strict=True))
    return [tuple((digest("text", t), counts[t]) for t in row) for row in rows]


def generated_tool_lists(rng: random.Random) -> list[ToolList]:
    """As many lists as BFCL has distinct ones, of tools of one list only, of its mean lengths."""
    return [
        tuple(
            (digest("tool", number, slot), draw_tokens(rng, LIST_TOKENS / LIST_TOOLS))
            for slot in range(LIST_TOOLS)
        )
        for number in range(LISTS)
    ]


@TRACES.register("toolbench")
def toolbench(
    *,
    seed: int,
    count: int,
    zipf: float | None = None,
    copies: int = 1,
    reorderable: bool = False,
    real: bool = True,
    path: str | None = None,
) -> Trace:
    """Tool use (Preble, §A.1): 1,835 prompt tokens, 43 generated, 85% shared.

    ``zipf`` draws tasks by Zipf over their distinct tool lists, in an order drawn by seed (Preble's
    ablation: 1.1); None draws them as often as the file has them. ``copies`` has so many times as many
    distinct lists, of other tools of the same lengths: distinct prefixes that grow with a cluster.
    ``reorderable`` lets the tools of a task trade places. ``real=False`` needs no data.
    """
    if copies < 1:
        raise ValueError(f"{copies} copies of the tools are too few")
    rng = random.Random(f"toolbench-{seed}")
    lists = read_tool_lists(path) if real else generated_tool_lists(rng)
    lists = [_renamed(tools, copy) for copy in range(copies) for tools in lists]
    system = Segment(digest("toolbench", "instructions"), INSTRUCTION_TOKENS, SegmentKind.SYSTEM)
    cum_weights: list[float] | None = None
    if zipf is not None:
        distinct = list(dict.fromkeys(lists))
        lists = rng.sample(distinct, len(distinct))
        cum_weights = zipf_weights(len(lists), zipf)
    run = 0 if reorderable else None
    requests: list[TraceRequest] = []
    for number in range(count):
        tools = rng.choices(lists, cum_weights=cum_weights)[0]
        segments = tuple(Segment(i, tokens, SegmentKind.TOOL, run=run) for i, tokens in tools)
        private = draw_tokens(rng, PRIVATE_TOKENS)
        skeleton = Skeleton(system, segments, (NO_GAP,) * len(tools), private)
        requests.append(TraceRequest(f"r{number}", skeleton, draw_tokens(rng, OUTPUT_TOKENS)))
    tools_note = (
        "tool schemas, their lengths (Qwen3 tokens) and which come together are real (BFCL)"
        if real
        else "tools are generated at the mean lengths of BFCL's"
    )
    notes = (
        f"{tools_note}; instructions ({INSTRUCTION_TOKENS} tokens), queries and outputs are generated "
        "so that means and sharing are those that Preble states for ToolBench",
    )
    options = {
        "zipf": zipf,
        "copies": copies,
        "reorderable": reorderable,
        "real": real,
        "path": path,
    }
    return Trace("toolbench", seed, options, tuple(requests), notes)


def _renamed(tools: ToolList, copy: int) -> ToolList:
    """Other tools of the same lengths; copy 0 is the tools themselves."""
    if not copy:
        return tools
    return tuple((digest("copy", copy, tool), tokens) for tool, tokens in tools)
