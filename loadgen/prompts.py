"""A trace's prompts as OpenAI chat bodies: real texts where the trace has them, made ones where not.

Equal names become equal texts, so what can be shared stays shared. Sends nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, get_args

from loadgen.rows import PlannedRequest
from loadgen.traces.base import Trace, TraceRequest
from prism_ray.model import Segment

Style = Literal["segments", "parts", "plain"]
"""``segments``: content parts with ``prism`` marks. ``parts``: the same parts, unmarked. ``plain``: one
string. The model reads the same words in all three (a server may join parts in its own way)."""
STYLES: tuple[Style, ...] = get_args(Style)

Texts = Literal["real", "made"]
TEXTS: tuple[Texts, ...] = get_args(Texts)

_WORDS = """
the of and to in is was for on that by it with from at his an were are which this have one city river
bridge house road school church family book music game team season year day part time life work war
world state county north south east west line station area number name water land field tree hill
island lake sea ship car train story film song band album group member people man woman child father
mother son king law court party vote power
""".split()  # noqa: SIM905


class NoTexts(ValueError):
    """The trace has no texts, or the data set with them is not there."""


class _TextOf:
    """Texts by name, and how many tokens of them are made."""

    def __init__(self, trace: Trace, texts: Texts) -> None:
        self._text_of = trace.text_of if texts == "real" else None
        self.tokens = 0
        self.made_tokens = 0

    def __call__(self, name: bytes, tokens: int) -> str:
        self.tokens += tokens
        text = None if self._text_of is None else self._text_of(name)
        if text is None:
            self.made_tokens += tokens
            text = made_text(name, tokens)
        return text


@lru_cache(maxsize=8192)
def made_text(name: bytes, tokens: int) -> str:
    """Words drawn from ``name``, one for each token: in common vocabularies about as many tokens."""
    return " ".join(random.Random(name).choices(_WORDS, k=tokens))


def plan_requests(
    trace: Trace, *, style: Style = "segments", texts: Texts = "real", ignore_eos: bool = False
) -> tuple[list[PlannedRequest], tuple[str, ...]]:
    """The trace's requests as streamed chats at its own times, and what is to be said of their texts.

    ``ignore_eos`` asks SGLang and vLLM for exactly the trace's output length. Raises NoTexts where
    real texts are asked for and the trace has none.
    """
    if texts == "real" and trace.text_of is None:
        raise NoTexts(f"trace {trace.name} has no texts; made ones keep lengths and sharing")
    text_of = _TextOf(trace, texts)
    planned = []
    for request in trace.requests:
        body: dict[str, Any] = {
            "messages": list(_messages(request, style, text_of)),
            "max_tokens": max(1, request.output_tokens),
            "stream": True,
        }
        if ignore_eos:
            body["ignore_eos"] = True
        planned.append(PlannedRequest(request.arrival_s, body, request.request_id))
    share = text_of.made_tokens / text_of.tokens if text_of.tokens else 0.0
    notes = (f"made texts stand for {share:.0%} of the prompt tokens, a word for a token",)
    return planned, (*trace.notes, *(notes if share else ()))


def _messages(request: TraceRequest, style: Style, text_of: _TextOf) -> Iterator[dict[str, Any]]:
    skeleton = request.skeleton
    if skeleton.system is not None:
        content = text_of(skeleton.system.id, skeleton.system.tokens)
        yield {"role": "system", "content": content}
    parts: list[dict[str, Any]] = []
    for gap, segment in zip(skeleton.gaps, skeleton.segments, strict=True):
        if gap.tokens:
            parts.append({"type": "text", "text": text_of(gap.id, gap.tokens)})
        part: dict[str, Any] = {"type": "text", "text": text_of(segment.id, segment.tokens)}
        if style == "segments":
            part["prism"] = _mark(segment)
        parts.append(part)
    parts += [{"type": "text", "text": text_of(a.id, a.tokens)} for a in request.private_atoms]
    if style == "plain":
        yield {"role": "user", "content": "\n".join(part["text"] for part in parts)}
    else:
        yield {"role": "user", "content": parts or ""}


def _mark(segment: Segment) -> dict[str, Any]:
    label = segment.label or segment.id.hex()
    return {"segment": label, "reorderable": segment.run is not None}
