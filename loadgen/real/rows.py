"""One row per request of a real run: when what happened, what was cached, what came back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadgen.real.answers import Answer
from prism_ray.model import Order, Outcome


@dataclass(slots=True)
class RealRow:
    """What became of a request; times are seconds since the run began, None for what never happened.

    ``first_token_s`` is when the engine had the first token: the end of the prefill, in the scheduler
    process; ``first_chunk_s`` is when the first part of the answer was here, which of a whole answer is
    its end. ``lateness_s``: how long after its arrival time the driver handed the request over.
    """

    request_id: str
    arrival_s: float
    prompt_tokens: int
    lateness_s: float = 0.0
    replica: str = ""
    order: Order = ()
    reason: str = ""
    predicted_cached_tokens: int = 0
    decided_s: float | None = None
    prefill_s: float | None = None
    first_token_s: float | None = None
    first_chunk_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    outcome: Outcome | None = None
    answer: Answer = field(default_factory=Answer)
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to first token, from arrival; infinite while there is none."""
        return float("inf") if self.first_token_s is None else self.first_token_s - self.arrival_s

    def as_json(self) -> dict[str, Any]:
        """JSON-ready, without the answer."""
        names = (name for name in self.__slots__ if name != "answer")
        return {name: getattr(self, name) for name in names}


def hit_rate(rows: list[RealRow]) -> float:
    """Σ cached / Σ prompt tokens over the requests that were admitted; 0 without any."""
    admitted = [row for row in rows if row.cached_tokens is not None]
    prompt = sum(row.prompt_tokens for row in admitted)
    return sum(row.cached_tokens or 0 for row in admitted) / prompt if prompt else 0.0
