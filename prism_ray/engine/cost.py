"""How long an engine step takes, as a linear model of what is in it; no engine, no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostModel:
    """t = base + new_token·(prefilled tokens) + decode·(decoding requests) + context·(their KV).

    All fields are seconds: per step, per prefilled token, per decoding request, and per token of KV
    that a decode step reads. Profiles of real machines are files (``prism_ray.engine.profile``).
    """

    base_s: float = 0.0
    new_token_s: float = 0.0
    decode_request_s: float = 0.0
    context_token_s: float = 0.0

    def __post_init__(self) -> None:
        values = (self.base_s, self.new_token_s, self.decode_request_s, self.context_token_s)
        if not all(0 <= value < float("inf") for value in values):
            raise ValueError(f"costs are finite and not negative: {self}")

    def step_s(self, new_tokens: int, decode_requests: int, context_tokens: int) -> float:
        """Duration of one step in seconds."""
        return (
            self.base_s
            + self.new_token_s * new_tokens
            + self.decode_request_s * decode_requests
            + self.context_token_s * context_tokens
        )

    def scaled(self, factor: float) -> CostModel:
        """Every cost times ``factor``."""
        return CostModel(
            self.base_s * factor,
            self.new_token_s * factor,
            self.decode_request_s * factor,
            self.context_token_s * factor,
        )
