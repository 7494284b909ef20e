"""What a real engine answered, as numbers: generated ids and how sure the model was of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LOGPROBS = 2
"""The best and the second best: their distance says how nearly another token was chosen."""


class Answer(NamedTuple):
    """Generated token ids, the best two tokens' distance in log-probability at each, and its own.

    ``gaps`` and ``logprobs`` are empty where nobody asked for them. A gap is infinite where the
    engine named one token only (two of equal text are one key in OpenAI's format).
    """

    token_ids: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    logprobs: tuple[float, ...] = ()


class Difference(NamedTuple):
    """The first generated token at which two answers part, and the smaller of their gaps there."""

    position: int
    gap: float


def request_body(output_tokens: int, *, gaps: bool) -> dict[str, Any]:
    """The completion body of a request that generates exactly so many tokens, at temperature 0."""
    body: dict[str, Any] = {
        "model": "real",
        "prompt": "the ids are the prompt",
        "max_tokens": output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return body | ({"logprobs": LOGPROBS} if gaps else {})


def streamed_body(output_tokens: int, *, ids: bool) -> dict[str, Any]:
    """The same, streamed. ``ids``: with token ids, which brings the prompt's back too."""
    body = request_body(output_tokens, gaps=False)
    return body | {"stream": True, "return_token_ids": ids}


def streamed_ids(payload: Mapping[str, Any]) -> tuple[int, ...]:
    """The token ids that came with one part of a streamed completion."""
    return tuple(
        i for choice in payload.get("choices") or () for i in choice.get("token_ids") or ()
    )


def read_answer(payload: Mapping[str, Any]) -> Answer:
    """The answer in a whole completion object."""
    choice = payload["choices"][0]
    logprobs = choice.get("logprobs") or {}
    return Answer(
        tuple(choice.get("token_ids") or ()),
        tuple(map(_gap, logprobs.get("top_logprobs") or ())),
        tuple(logprobs.get("token_logprobs") or ()),
    )


def _gap(top: Mapping[str, float] | None) -> float:
    best = sorted(top.values(), reverse=True) if top else []
    return best[0] - best[1] if len(best) > 1 else float("inf")


def first_difference(one: Answer, other: Answer) -> Difference | None:
    """Where two answers part, None if one begins the other (aborted requests answer in part)."""
    for position, (a, b) in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
        if a != b:
            return Difference(position, min(_at(one.gaps, position), _at(other.gaps, position)))
    return None


def _at(gaps: Sequence[float], position: int) -> float:
    return gaps[position] if position < len(gaps) else float("inf")
