"""The paper's main trace, ``zipf_hotspot``, in every reading of its text, as skeletons.

Knows ids and lengths only, the same on every machine; texts of the passages are in ``passages``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.passages import passage_texts
from loadgen.traces.retrieval import read_lists
from prism_ray.model import NO_GAP, Atom, Segment, SegmentKind, Skeleton, Ticket

READINGS = {
    "a": "one slot of a hot request is hot",
    "2": "two slots of a hot request are hot",
    "3": "three slots of a hot request are hot",
    "b": "every slot is hot by itself, so that a request is hot at the hot rate",
    "c": "1 to all slots of a hot request are hot, uniformly",
    "d": "all slots of a hot request are hot",
    "e": "a hot request is a real retrieval list that has a hot passage in it",
}
"""How many slots of a hot request are hot: the paper says "at least one"."""

PROMPT_TOKENS = {3: 768, 5: 1029, 8: 1430}
"""Prompt length by passages a request (paper, Figure 5 and its text; which k is our reading)."""


@dataclass(frozen=True, slots=True)
class ZipfHotspot:
    """Parameters of the trace (paper, "Hotspot and arrival process").

    Hot documents are drawn by Zipf over their rank, the others uniformly; the documents of a request
    are distinct and stand in random order. ``reading`` is one of ``READINGS``; ``hot_slots``
    overrules it with a fixed number. ``private_tokens`` completes prompts to the paper's length
    (1,029 tokens at 5 slots) where it is None. Raises ValueError for an unknown reading, sets too
    small for distinct documents, or a system prefix that leaves no room in that length.
    """

    seed: int
    passages: int = 981
    segment_tokens: int = 128
    slots: int = 5
    hot_passages: int = 20
    hot_rate: float = 0.7
    hot_slots: int | None = None
    zipf: float = 1.2
    system_tokens: int = 214
    private_tokens: int | None = None
    reading: str = "3"
    gap_tokens: int = 0

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"no reading {self.reading!r}; there are {', '.join(READINGS)}")
        if not 0 <= self.hot_rate <= 1:
            raise ValueError(f"a rate of hot requests lies between 0 and 1, not {self.hot_rate}")
        if self.hot_slots is not None and not 0 <= self.hot_slots <= self.slots:
            raise ValueError(f"{self.hot_slots} of {self.slots} slots cannot be hot")
        cold = self.passages - self.hot_passages
        if self.most_hot_slots > self.hot_passages or cold < self.slots:
            raise ValueError("too few passages for distinct documents in a request")
        if self.rest_tokens < 0:
            raise ValueError(
                f"{self.slots} passages of {self.segment_tokens} tokens and a system prefix of "
                f"{self.system_tokens} leave no room in a prompt of "
                f"{prompt_tokens(self.slots, self.segment_tokens)}; set private_tokens"
            )

    @property
    def most_hot_slots(self) -> int:
        """How many slots of one request can be hot at most."""
        if self.hot_slots is not None:
            return self.hot_slots
        fixed = {"a": 1, "2": 2, "3": 3, "e": 1}.get(self.reading, self.slots)
        return min(fixed, self.slots)

    @property
    def rest_tokens(self) -> int:
        """Private tokens of every request."""
        if self.private_tokens is not None:
            return self.private_tokens
        front = self.system_tokens + self.slots * (self.segment_tokens + self.gap_tokens)
        return prompt_tokens(self.slots, self.segment_tokens) - front

    @property
    def gap(self) -> Atom:
        """What stands before every passage."""
        return Atom(digest("gap"), self.gap_tokens) if self.gap_tokens else NO_GAP

    def skeletons(self) -> Iterator[Skeleton]:
        """Endless; the same seed gives the same sequence. ValueError for e, which needs real lists."""
        if self.reading == "e":
            raise ValueError("reading e is drawn from real lists: make_trace has it")
        rng = random.Random(self.seed)
        system = Segment(digest("system"), self.system_tokens, SegmentKind.SYSTEM)
        passages = [
            Segment(digest(f"passage-{i}"), self.segment_tokens, run=0, label=f"passage-{i}")
            for i in range(self.passages)
        ]
        hot = rng.sample(range(self.passages), self.hot_passages)
        cold = [i for i in range(self.passages) if i not in set(hot)]
        cum_weights = zipf_weights(len(hot), self.zipf)
        gap = self.gap
        rest_tokens = self.rest_tokens
        while True:
            hot_slots = self._draw_hot_slots(rng)
            chosen: dict[int, None] = {}
            while len(chosen) < hot_slots:
                chosen[rng.choices(hot, cum_weights=cum_weights)[0]] = None
            documents = [*chosen, *rng.sample(cold, self.slots - hot_slots)]
            rng.shuffle(documents)
            segments = tuple(passages[i] for i in documents)
            yield Skeleton(system, segments, (gap,) * self.slots, rest_tokens)

    def tickets(self, rate_per_s: float | None = None) -> Iterator[Ticket]:
        """Endless tickets ``r0``, ``r1``, …; Poisson arrivals at ``rate_per_s``, all at 0 without.

        Arrivals have a generator of their own: the same prompts come at every rate.
        """
        rng = random.Random(f"arrivals-{self.seed}")
        arrival_s = 0.0
        for number, skeleton in enumerate(self.skeletons()):
            if rate_per_s is not None:
                arrival_s += rng.expovariate(rate_per_s)
            yield Ticket(f"r{number}", skeleton, arrival_s)

    def _draw_hot_slots(self, rng: random.Random) -> int:
        if self.reading == "b" and self.hot_slots is None:
            slot_rate = 1 - (1 - self.hot_rate) ** (1 / self.slots)
            return sum(rng.random() < slot_rate for _ in range(self.slots))
        if rng.random() >= self.hot_rate:
            return 0
        if self.reading == "c" and self.hot_slots is None:
            return rng.randint(1, self.slots)
        return self.most_hot_slots


def prompt_tokens(slots: int, segment_tokens: int = 128) -> int:
    """The paper's prompt length at ``slots`` passages; a straight line where it gives none."""
    published = PROMPT_TOKENS.get(slots)
    if published is None or segment_tokens != 128:
        # The line through the published 5 and 8: 133.7 tokens a passage, of which 128 its own.
        return round(1029 + (slots - 5) * 401 / 3) + slots * (segment_tokens - 128)
    return published


def zipf_weights(count: int, exponent: float) -> list[float]:
    """Cumulative weights of ranks 1 to ``count`` under Zipf's law."""
    return list(accumulate((rank + 1) ** -exponent for rank in range(count)))


@TRACES.register("zipf_hotspot")
def zipf_hotspot(
    *,
    seed: int,
    count: int,
    reading: str = "3",
    system_tokens: int = 214,
    slots: int = 5,
    passages: int = 981,
    segment_tokens: int = 128,
    hot_passages: int = 20,
    hot_rate: float = 0.7,
    zipf: float = 1.2,
    private_tokens: int | None = None,
    gap_tokens: int = 0,
    output_tokens: int = 16,
) -> Trace:
    """The paper's trace: reading 3 with a system prefix of 214 tokens, unless told otherwise."""
    reading = str(reading)
    shape = ZipfHotspot(
        seed=seed,
        passages=passages,
        segment_tokens=segment_tokens,
        slots=slots,
        hot_passages=hot_passages,
        hot_rate=hot_rate,
        zipf=zipf,
        system_tokens=system_tokens,
        private_tokens=private_tokens,
        reading=reading,
        gap_tokens=gap_tokens,
    )
    options = {
        "reading": reading,
        "system_tokens": system_tokens,
        "slots": slots,
        "passages": passages,
        "segment_tokens": segment_tokens,
        "hot_passages": hot_passages,
        "hot_rate": hot_rate,
        "zipf": zipf,
        "private_tokens": shape.rest_tokens,
        "gap_tokens": gap_tokens,
        "output_tokens": output_tokens,
    }
    notes = [f"reading {reading}: {READINGS[reading]}; system prefix of {system_tokens} tokens"]
    text_of: Callable[[bytes], str | None] | None
    if reading == "e":
        skeletons, texts = _real_lists(shape)
        text_of = texts.get
        notes.append(
            "lists and passages are MultiHop-RAG's real ones, every passage counted as "
            f"{segment_tokens} tokens; hot are the {hot_passages} passages in most lists"
        )
    else:
        skeletons = shape.skeletons()
        text_of = passage_texts(seed, passages, segment_tokens)
        notes.append(
            f"{passages} passages stand for real ones of MultiHop-RAG's retrieval lists, drawn by "
            f"seed and cut or padded to {segment_tokens} Qwen3 tokens"
        )
    requests = tuple(
        TraceRequest(f"r{n}", s, output_tokens) for n, s in enumerate(islice(skeletons, count))
    )
    return Trace("zipf_hotspot", seed, options, requests, tuple(notes), text_of)


def _real_lists(shape: ZipfHotspot) -> tuple[Iterator[Skeleton], dict[bytes, str]]:
    """Reading e: the documents of a request were really retrieved together, in that order."""
    lists = [
        row[: shape.slots]
        for row in read_lists("multihop-rag")
        if len(set(row[: shape.slots])) == shape.slots
    ]
    uses = Counter(text for row in lists for text in row)
    segments = {
        text: Segment(digest("text", text), shape.segment_tokens, SegmentKind.DOCUMENT, run=0)
        for text in uses
    }
    hot = [text for text, _ in uses.most_common(shape.hot_passages)]
    by_hot = [[row for row in lists if text in row] for text in hot]
    cold = [row for row in lists if not set(row) & set(hot)]
    return (
        _draw_lists(shape, segments, by_hot, cold),
        {segment.id: text for text, segment in segments.items()},
    )


def _draw_lists(
    shape: ZipfHotspot,
    segments: dict[str, Segment],
    by_hot: Sequence[Sequence[tuple[str, ...]]],
    cold: Sequence[tuple[str, ...]],
) -> Iterator[Skeleton]:
    rng = random.Random(shape.seed)
    system = Segment(digest("system"), shape.system_tokens, SegmentKind.SYSTEM)
    gap = shape.gap
    cum_weights = zipf_weights(len(by_hot), shape.zipf)
    while True:
        is_hot = rng.random() < shape.hot_rate
        lists = rng.choices(by_hot, cum_weights=cum_weights)[0] if is_hot else cold
        row = rng.choice(lists)
        yield Skeleton(
            system, tuple(segments[text] for text in row), (gap,) * len(row), shape.rest_tokens
        )
