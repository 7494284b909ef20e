"""Runs of a reproduction as they could have been: figures by hand, hashes that agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.reproduce.claims import Claim, Reading
from loadgen.reproduce.results import Results

SETTING = "paper-4b"
READING = Reading("here", SETTING, rates=(10.0, 20.0))


def run(
    arm: str,
    qps: float,
    seed: int,
    *,
    p99: float = 1.0,
    hit: float = 0.4,
    least: float = 0.5,
    prompts: str = "",
    **figures: Any,
) -> dict[str, Any]:
    return {
        "arm": arm,
        "qps": qps,
        "seed": seed,
        "load": None,
        "requests": 1,
        "hit_rate": hit,
        "ttft_s": {"mean": p99 / 2, "p50": p99 / 2, "p90": p99, "p95": p99, "p99": p99},
        "ttft_p99_least_s": least,
        "bounds": {"b0": 0.5, "b1": 0.6, "b3": 0.5},
        "hashes": {"prompts": prompts or f"p{seed}", "arrivals": f"{qps} {seed}", "pool": "m"},
        **figures,
    }


def results(*runs: dict[str, Any], setting: str = SETTING) -> Results:
    return Results((setting, one) for one in runs)


def grid(arm: str, p99s: Sequence[Sequence[float]], **more: Any) -> list[dict[str, Any]]:
    """P99 by rate of ``READING`` and seed."""
    return [
        run(arm, qps, seed, p99=p99, **more)
        for qps, row in zip(READING.rates, p99s, strict=True)
        for seed, p99 in enumerate(row)
    ]


def claim(**given: Any) -> Claim:
    """A change of P99 against ``peer`` unless told otherwise."""
    values: dict[str, Any] = {
        "id": "c",
        "source": "prism",
        "where": "here",
        "says": "so",
        "kind": "change",
        "metrics": ("ttft_s.p99",),
        "number": -0.2,
        "relation": "at_most",
        "arm": "ours",
        "against": ("peer",),
        "readings": (READING,),
    }
    return Claim(**{**values, **given})
