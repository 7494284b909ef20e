"""The bounds that stand beside the hit rate of a run of which only prompts and times are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadgen.bounds.blocks import Prompt
from loadgen.bounds.hit_rates import b0, b1, b4


def bounds_beside(
    prompts: Sequence[Prompt],
    *,
    movable: bool,
    pool_tokens: int | None = None,
    wait_s: float | None = None,
    page_size: int = 1,
) -> dict[str, float | None]:
    """B0 of the prompts as they are given, B1, and B4 where pool (of all replicas) and wait are known.

    ``movable``: the server may reorder segments. ``wait_s`` is the longest time from an arrival until
    all that the request brought was in the pool. Nothing for no prompts.
    """
    if not prompts:
        return {}
    tight = b1(prompts, page_size, movable=movable)
    bounds = {"b0": b0(prompts, page_size), "b1": tight}
    if pool_tokens is not None and wait_s is not None:
        bounds["b4"] = b4(prompts, pool_tokens, wait_s, page_size, movable=movable, known_b1=tight)
    return bounds


def bounds_in_words(bounds: Mapping[str, float | None]) -> str:
    """Those that are known, for people; empty if none is."""
    known = {name: value for name, value in sorted(bounds.items()) if value is not None}
    return "  ".join(f"{name.upper()} {value:.1%}" for name, value in known.items())
