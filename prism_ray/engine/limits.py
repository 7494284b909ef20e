"""The limits of a modelled engine: typed, frozen, checked; no step is computed here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepParams:
    """An engine's limits, in tokens and requests.

    ``chunked_prefill_tokens`` None: prompts are prefilled whole. ``overlap``: a batch is formed while
    the one before it runs, so it sees what was inserted one batch earlier still. ``output_reserve``
    is the share of running requests' remaining output limits that admission keeps free (SGLang's
    new_token_ratio starts at 0.7 and decays; here it is constant). ``refresh_waiting_prefixes`` is
    SGLang's rule for fcfs with lru: every 32 passes it touches the prefixes of 128 waiting requests.
    """

    pool_tokens: int = 400_000
    context_length: int = 40_960
    max_running: int = 128
    chunked_prefill_tokens: int | None = 8192
    max_prefill_tokens: int = 16_384
    page_size: int = 1
    overlap: bool = False
    retention: str = "dart"
    protect_anchors: int = 20
    protect_share: float = 0.5
    anchor_rank: str = "paths"
    output_reserve: float = 0.7
    refresh_waiting_prefixes: bool = False

    def __post_init__(self) -> None:
        whole = {
            "pool_tokens": self.pool_tokens,
            "context_length": self.context_length,
            "max_running": self.max_running,
            "max_prefill_tokens": self.max_prefill_tokens,
            "page_size": self.page_size,
        }
        for name, value in whole.items():
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        chunk = self.chunked_prefill_tokens
        if chunk is not None and chunk < self.page_size:
            raise ValueError(f"chunked_prefill_tokens: expected at least a page, got {chunk}")
        if not 0 <= self.output_reserve <= 1:
            raise ValueError(
                f"output_reserve: expected a number from 0 to 1, got {self.output_reserve}"
            )

    @property
    def longest_request_tokens(self) -> int:
        """Prompt and new tokens together that one request can have: context length or whole pages."""
        return min(self.context_length, self.pool_tokens - self.pool_tokens % self.page_size)
