"""Batches of the step model: their entries and budgets, and what a step reports; no forming."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from prism_ray.engine.limits import StepParams
from prism_ray.engine.sequence import Sequence, Stage
from prism_ray.model import Outcome


class Admitted(NamedTuple):
    """A request entered its first prefill batch with ``cached_tokens`` matched (choice A15: once)."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


class Ended(NamedTuple):
    """A request left the model; it holds nothing any more."""

    request_id: str
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """A batch that has begun: how long it takes and what is in it. ``admitted`` happens now."""

    duration_s: float
    new_tokens: int
    decode_requests: int
    admitted: tuple[Admitted, ...]


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What is true once a batch has ended, in this order: prefills, one token each, departures."""

    prefilled: tuple[str, ...]
    tokens: tuple[str, ...]
    ended: tuple[Ended, ...]


class StepResult(NamedTuple):
    """A whole step: ``begun`` happens at its start, ``end`` ``begun.duration_s`` later."""

    begun: Step
    end: StepEnd


class Entry(NamedTuple):
    sequence: Sequence
    admission: int
    kv_tokens: int

    @property
    def void(self) -> bool:
        """The sequence was retracted or left since the batch was formed."""
        sequence = self.sequence
        return sequence.stage is Stage.DONE or sequence.admission != self.admission


@dataclass(slots=True)
class Batch:
    prefill: bool
    entries: list[Entry] = field(default_factory=list)
    new_tokens: int = 0
    context_tokens: int = 0
    admitted: list[Admitted] = field(default_factory=list)

    def add(self, sequence: Sequence, kv_tokens: int) -> None:
        self.entries.append(Entry(sequence, sequence.admission, kv_tokens))
        sequence.in_flight += 1


class PrefillPlan:
    """What is left of the budgets of the prefill batch that is being formed."""

    def __init__(self, params: StepParams, reserved: float) -> None:
        self._page = params.page_size
        self._input = params.max_prefill_tokens
        self._chunk = params.chunked_prefill_tokens
        self._empty = True
        self.reserved = reserved
        self.pool_tokens = 0

    def takes(self, new_tokens: int) -> bool:
        """Does the input budget allow one more request? The first always goes."""
        return self._empty or new_tokens <= self._input

    def chunk(self, tokens: int, room: int | None = None) -> int:
        """How many of ``tokens`` may be prefilled now; all, or whole pages."""
        limit = tokens if self._chunk is None else min(tokens, self._chunk)
        if room is not None:
            limit = min(limit, room)
        return limit if limit == tokens else limit - limit % self._page

    def spend(self, tokens: int, pool_tokens: int) -> None:
        self._empty = False
        self._input -= tokens
        if self._chunk is not None:
            self._chunk -= tokens
        self.pool_tokens += pool_tokens
