"""The Azure LLM inference traces of 2023, and a tool and video mix that arrives as they did.

The traces (Splitwise, ISCA 2024; CC BY 4.0) have times and lengths, no prompts: pairing their times
with prompts of other sources is ours.
"""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from loadgen.traces.base import TRACES, Trace, TraceRequest, make_trace
from loadgen.traces.data import data_path, version

FILES = {
    "conv": "azure-llm-2023/AzureLLMInferenceTrace_conv.csv",
    "code": "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
}


class AzureRow(NamedTuple):
    """One request of the trace; ``at_s`` counts from the file's first."""

    at_s: float
    context_tokens: int
    generated_tokens: int


def read_azure(which: str, path: str | None = None) -> tuple[AzureRow, ...]:
    """The rows of "conv" or "code", in order. Raises DataMissing, or ValueError for another form."""
    found = data_path(FILES[which], path)
    return _read(found, version(found))


@lru_cache(maxsize=4)
def _read(path: Path, _version: tuple[int, int]) -> tuple[AzureRow, ...]:
    """Columns TIMESTAMP (seven decimals of a second), ContextTokens, GeneratedTokens."""
    rows: list[AzureRow] = []
    start: datetime | None = None
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"][:26])
                lengths = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: no Azure trace row: {error}") from error
            start = start or at
            rows.append(AzureRow((at - start).total_seconds(), *lengths))
    return tuple(rows)


@TRACES.register("azure-mix")
def azure_mix(*, seed: int, count: int, video_share: float = 0.5, arrivals: str = "conv") -> Trace:
    """Tool use and video questions together, with the times of an Azure trace (Preble, §4.3).

    ``video_share`` of the requests are ``videoqa``'s, the others ``toolbench``'s. ``arrivals``:
    "conv" or "code". The window of consecutive arrivals is drawn by seed.
    """
    if not 0 <= video_share <= 1:
        raise ValueError(f"a share lies between 0 and 1, not {video_share}")
    if arrivals not in FILES:
        raise ValueError(f"no Azure trace {arrivals!r}; there are {', '.join(FILES)}")
    rng = random.Random(f"azure-mix-{seed}")
    times = [row.at_s for row in read_azure(arrivals)]
    count = min(count, len(times))
    first = rng.randrange(len(times) - count + 1)
    is_video = [rng.random() < video_share for _ in range(count)]
    video = make_trace("videoqa", seed, sum(is_video))
    tool = make_trace("toolbench", seed, count - sum(is_video))
    videos, tools = iter(video.requests), iter(tool.requests)
    requests: list[TraceRequest] = []
    for number, of_video in enumerate(is_video):
        request = next(videos if of_video else tools)
        at_s = times[first + number] - times[first] if count else 0.0
        requests.append(replace(request, request_id=f"r{number}", arrival_s=at_s))
    notes = (
        f"times are those of the Azure {arrivals} trace of 2023, a window drawn by seed; pairing them "
        "with these prompts is ours",
        *(f"videoqa: {note}" for note in video.notes),
        *(f"toolbench: {note}" for note in tool.notes),
    )
    options = {"video_share": video_share, "arrivals": arrivals}
    return Trace("azure-mix", seed, options, tuple(requests), notes)
